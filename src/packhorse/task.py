# SPDX-License-Identifier: MIT
"""A declared function: call it as before, or submit a call of it with the same arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from packhorse.batches.beginning import MapOptions, NewBatch
from packhorse.batches.handle import Batch
from packhorse.call import NO_CHOICES, Call, call_with_results
from packhorse.client.registry import TaskDefinition, define_task
from packhorse.client.submission import Submission
from packhorse.context import Context
from packhorse.contract import Contract
from packhorse.core.clock import SECOND_US
from packhorse.core.job import RetryRule
from packhorse.core.options import VERBS_ELSEWHERE, CallOptions, TaskOptions
from packhorse.core.references import has_references
from packhorse.core.schemas import schema_of
from packhorse.errors import ConfigError, PackhorseError, UsageError
from packhorse.handle import JobHandle

P = ParamSpec("P")
R = TypeVar("R")
K = TypeVar("K", bound="Task[..., Any]")
U = TypeVar("U", bound=Callable[[dict[str, Any]], Any])

#: Of a contract that says none.
_VERSION: Final = "1.0"


class Task(Generic[P, R]):
    """A function that can be submitted; `P` are its arguments, without the context."""

    __name__: str  # the function's own, as its docstring and its signature are

    def __init__(self, definition: TaskDefinition, submission: Submission) -> None:
        functools.update_wrapper(cast("Any", self), definition.function)
        self.definition = definition
        self.submission = submission  #: submits its calls
        self.choices = NO_CHOICES  #: the options that `using` chose for its jobs

    @property
    def name(self) -> str:
        """The name its jobs are stored under."""
        return self.definition.name

    @property
    def function(self) -> Callable[..., Any]:
        """The function as it was declared; if it wants a context, that is its first argument."""
        return self.definition.function

    @property
    def contract(self) -> Contract:
        """Its contract: as declared, the rest derived from the function and its options."""
        task, retry = self.definition, self.definition.retry
        with suppress(UsageError):  # its router belongs to no app, or to several
            queue = self.submission.connection.queues.get(task.queue)
            retry = retry or (queue.retry if queue is not None else None)
        return _contract(task, retry or RetryRule())

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Store a job with these arguments, and return without waiting for it to run."""
        submission = self.submission
        return submission.store(submission.prepared((self.call(*args, **kwargs),)), "enqueue")[0]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """As `enqueue`, without blocking the event loop."""
        submission = self.submission
        return (await submission.astore(submission.prepared((self.call(*args, **kwargs),))))[0]

    def enqueue_many(
        self,
        items: Iterable[Call[R] | Mapping[str, Any]],
        *,
        atomic: bool = False,
        tx: object = None,
    ) -> list[JobHandle[R]]:
        """Store calls of this task, or arguments by name, as `Packhorse.enqueue_many` does."""
        batch = self.submission.prepared(self._calls(items), atomic=atomic, tx=tx)
        return self.submission.store(batch, "enqueue_many")

    async def aenqueue_many(
        self,
        items: Iterable[Call[R] | Mapping[str, Any]],
        *,
        atomic: bool = False,
        tx: object = None,
    ) -> list[JobHandle[R]]:
        """As `enqueue_many`, without blocking the event loop."""
        batch = self.submission.prepared(self._calls(items), atomic=atomic, tx=tx)
        return await self.submission.astore(batch)

    def map(self, items: Iterable[Any], **options: Unpack[MapOptions]) -> Batch[R]:
        """Store a job for each item, as one batch, whose results are typed.

        An item is a mapping of arguments, or the value of the only parameter. Any iterator will
        do: it is read as the jobs are stored, and never held whole.
        """
        new = NewBatch(self.submission, self.definition, self.choices, options, single=True)
        return new.begin(items)

    async def amap(
        self, items: Iterable[Any] | AsyncIterable[Any], **options: Unpack[MapOptions]
    ) -> Batch[R]:
        """As `map`, without blocking the event loop; also of async iterators."""
        new = NewBatch(self.submission, self.definition, self.choices, options, single=True)
        return await new.abegin(items)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Check these arguments, and return a call to submit with others or later."""
        try:
            payload = self.definition.encode(args, kwargs)
        except PackhorseError:
            if not has_references((args, kwargs)):
                raise
            return call_with_results(self.definition, args, kwargs, self.choices)
        return Call(self.definition, payload, self.choices)

    def job(self, job_id: str) -> JobHandle[R]:
        """Return a handle on a job of this task, whose result is typed; reads nothing yet."""
        return JobHandle(job_id, False, self.submission.connection)

    def upcast(self, source: str, target: str) -> Callable[[U], U]:
        """Declare a function that migrates payloads of version `source` to version `target`.

        The function takes the payload, which is the arguments by name as plain JSON data, and
        returns it. Several make a chain, which ends at the version of the task's contract.
        """

        def declare(function: U) -> U:
            self.definition.upcast(source, target, function)
            return function

        return declare

    def using(self, **options: Unpack[CallOptions]) -> Self:
        """Return the same task with these options for its jobs."""
        choices = self.choices.using(dict(options), f"{self.name}.using()")
        task = object.__new__(type(self))
        task.__dict__.update(self.__dict__, choices=choices)  # wrapping it again is slow
        return task

    if not TYPE_CHECKING:  # checkers go on refusing what is not there

        def __getattr__(self, name: str) -> Any:
            if name in VERBS_ELSEWHERE:
                here = f"{self.name}.{VERBS_ELSEWHERE[name]}"
                raise AttributeError(f"task {self.name} has no {name}(...): it is {here} here")
            return super().__getattribute__(name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} at {self.definition.where}>"

    def _calls(self, items: Iterable[Call[R] | Mapping[str, Any]]) -> list[Call[R]]:
        return [self._call(item) for item in items]

    def _call(self, item: Call[R] | Mapping[str, Any]) -> Call[R]:
        if type(item) is dict or isinstance(
            item, Mapping
        ):  # most are dicts, which is cheaper to check
            payload = self.definition.encode((), item if type(item) is dict else dict(item))
            return Call(self.definition, payload, self.choices)
        if not isinstance(item, Call):
            raise UsageError(f"{item!r} is neither a call of {self.name} nor arguments by name")
        if item.definition is not self.definition:
            raise UsageError(
                f"a call of task {item.task} was given to {self.name}.enqueue_many(); "
                "submit calls of several tasks with app.enqueue_many()"
            )
        choices = item.choices.over(self.choices, f"{self.name}.enqueue_many()")
        return Call(item.definition, item.payload, choices)

    def _injected(self) -> tuple[Context, ...]:
        """Return what precedes the caller's arguments in a direct call: a context, or nothing."""
        if not self.definition.wants_context:
            return ()
        known: Mapping[str, Callable[..., Any]] = {}
        with suppress(UsageError):  # as in `contract`
            known = self.submission.connection.registry.tools
        return (Context.detached(self.name, tools=self.definition.tools(known)),)


def _contract(task: TaskDefinition, retry: RetryRule) -> Contract:
    """The whole contract of a task: what was declared, and the rest derived from the function."""
    signature, timeout_us = task.signature, task.timeout_us
    derived = Contract(
        worker_id=task.name,
        version=task.version or _VERSION,
        purpose=(inspect.getdoc(task.function) or "").strip().partition("\n")[0] or None,
        inputs=_derived(signature.arguments.type, signature.label),
        outputs=_derived(signature.results.returns.decoder.type, signature.label),
        timeout=None if timeout_us is None else timeout_us / SECOND_US,
        max_attempts=retry.max_retries + 1,
        backoff=cast("Any", retry.backoff),  # checked where it was given
        on_invalid_output="retry",
    )
    return derived if task.bound is None else task.bound.contract.over(derived)


def _derived(kind: Any, label: str) -> dict[str, Any]:
    schema = schema_of(kind, label)
    schema.pop("title", None)  # the function's name, which the contract says better
    return schema


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


class TaskDecorator:
    """Declares functions as tasks; called with options only, it returns a decorator with them.

    A first parameter that is a `Context` is not part of the call. Type checkers cannot tell it
    from one that takes anything (`object`, `Any`, no annotation), so annotate the first parameter.
    """

    def __init__(
        self,
        take: Callable[[Task[..., Any]], None],
        submission: Submission,
        options: Mapping[str, Any] | None = None,
        *,
        prefix: str = "",
        adopt: Callable[[Task[..., Any]], None] | None = None,
    ) -> None:
        self.take = take  #: called with each task that is declared
        self.submission = submission
        self._options = options or {}
        self._prefix = prefix
        self._adopt = adopt  # called with what is a task already, where that is of use

    def taking(
        self,
        take: Callable[[Task[..., Any]], None],
        adopt: Callable[[Task[..., Any]], None] | None = None,
    ) -> TaskDecorator:
        """Return the same decorator with another `take`, and perhaps an `adopt`."""
        return TaskDecorator(take, self.submission, self._options, prefix=self._prefix, adopt=adopt)

    @overload
    def __call__(self, function: K, /) -> K: ...
    # A coroutine function fits the overload for plain functions as well, so its own comes first.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> FunctionTask[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> FunctionTask[P, R]: ...
    @overload
    def __call__(
        self, function: None = None, /, **options: Unpack[TaskOptions]
    ) -> TaskDecorator: ...
    def __call__(self, function: Any = None, /, **options: Any) -> Any:
        """Declare `function` as a task, or return a decorator that will, with these options."""
        chosen = {**self._options, **options}
        if function is None:
            return TaskDecorator(
                self.take, self.submission, chosen, prefix=self._prefix, adopt=self._adopt
            )
        if self._adopt is not None and isinstance(function, Task):
            if chosen:
                raise ConfigError(
                    f"{function!r} is a task already, so its options are given where it is "
                    "declared, or with using(...)"
                )
            self._adopt(function)
            return function
        # Annotations may use names of the surrounding function, as in tests.
        frame = inspect.currentframe()
        scope = frame.f_back.f_locals if frame is not None and frame.f_back is not None else {}
        definition = define_task(function, chosen, scope=scope, prefix=self._prefix)
        kind = CoroutineTask if definition.coroutine else FunctionTask
        task: Task[..., Any] = kind(definition, self.submission)
        self.take(task)
        return task
