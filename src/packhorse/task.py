# SPDX-License-Identifier: MIT
"""A declared function: call it as before, or submit a call of it with the same arguments."""

from __future__ import annotations

import functools
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Generic, ParamSpec, Self, TypeVar, Unpack, cast

from packhorse.call import NO_CHOICES, Call, Choices
from packhorse.context import Context
from packhorse.errors import UsageError
from packhorse.handle import JobHandle
from packhorse.options import CallOptions
from packhorse.registry import TaskDefinition
from packhorse.submission import Submission

__all__ = ["CoroutineTask", "FunctionTask", "Task"]

P = ParamSpec("P")
R = TypeVar("R")


class Task(Generic[P, R]):
    """A function that can be submitted; `P` are its arguments, without the context."""

    __name__: str  # the function's own, as its docstring and its signature are

    def __init__(
        self, definition: TaskDefinition, submission: Submission, choices: Choices | None = None
    ) -> None:
        functools.update_wrapper(cast("Any", self), definition.function)
        self.definition = definition
        self._submission = submission
        self._choices = choices or NO_CHOICES
        self._encode = definition.signature.encode

    @property
    def name(self) -> str:
        """The name its jobs are stored under."""
        return self.definition.name

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Store a job with these arguments, and return without waiting for it to run."""
        payload = self._encode(args, kwargs)
        return self._submission.submit_one(Call(self.definition, payload, self._choices), "enqueue")

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """As `enqueue`, without blocking the event loop."""
        payload = self._encode(args, kwargs)
        return await self._submission.asubmit_one(Call(self.definition, payload, self._choices))

    def enqueue_many(self, items: Iterable[Call[R] | Mapping[str, Any]]) -> list[JobHandle[R]]:
        """Store calls of this task, or arguments by name, all or none, in one round trip."""
        return self._submission.submit(self._calls(items), "enqueue_many")

    async def aenqueue_many(
        self, items: Iterable[Call[R] | Mapping[str, Any]]
    ) -> list[JobHandle[R]]:
        """As `enqueue_many`, without blocking the event loop."""
        return await self._submission.asubmit(self._calls(items))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """A call with these arguments, checked, to be submitted with others or later."""
        payload = self._encode(args, kwargs)
        return Call(self.definition, payload, self._choices)

    def using(self, **options: Unpack[CallOptions]) -> Self:
        """The same task, whose jobs are submitted with these options."""
        choices = self._choices.using(dict(options), f"{self.name}.using()")
        return type(self)(self.definition, self._submission, choices)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} at {self.definition.where}>"

    def _calls(self, items: Iterable[Call[R] | Mapping[str, Any]]) -> list[Call[R]]:
        return [self._call(item) for item in items]

    def _call(self, item: Call[R] | Mapping[str, Any]) -> Call[R]:
        if isinstance(item, Mapping):
            payload = self.definition.signature.encode((), dict(item))
            return Call(self.definition, payload, self._choices)
        if not isinstance(item, Call):
            raise UsageError(f"{item!r} is neither a call of {self.name} nor arguments by name")
        if item.definition is not self.definition:
            raise UsageError(
                f"a call of task {item.task} was given to {self.name}.enqueue_many(); "
                "submit calls of several tasks with app.enqueue_many()"
            )
        choices = item.choices.over(self._choices, f"{self.name}.enqueue_many()")
        return Call(item.definition, item.payload, choices)

    def _injected(self) -> tuple[Context, ...]:
        """What comes before the caller's arguments when the function is called directly."""
        return (Context.detached(self.name),) if self.definition.wants_context else ()


class FunctionTask(Task[P, R]):
    """A task whose function is a plain `def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now, as if it were no task."""
        result: R = self.definition.function(*self._injected(), *args, **kwargs)
        return result


class CoroutineTask(Task[P, R]):
    """A task whose function is an `async def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function here and now, as if it were no task."""
        coroutine: Coroutine[Any, Any, R] = self.definition.function(
            *self._injected(), *args, **kwargs
        )
        return coroutine
