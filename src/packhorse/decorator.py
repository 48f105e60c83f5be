# SPDX-License-Identifier: MIT
"""`@app.task` and `@app.task(queue="mail", ...)`: from a function to a task of the same type."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from packhorse.context import Context
from packhorse.options import TaskOptions
from packhorse.registry import Registry, define_task
from packhorse.submission import Submission
from packhorse.task import CoroutineTask, FunctionTask, Task

__all__ = ["TaskDecorator"]

P = ParamSpec("P")
R = TypeVar("R")


class TaskDecorator:
    """Declares functions as tasks; called with options only, it is a decorator that has them.

    A first parameter that is a `Context` is not part of the call. Type checkers cannot tell it
    from one that takes anything (`object`, `Any`, no annotation), so annotate the first parameter.
    """

    def __init__(
        self,
        registry: Registry,
        submission: Submission,
        tasks: dict[str, Task[..., Any]],
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._registry = registry
        self._submission = submission
        self._tasks = tasks
        self._options = options or {}

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
            return TaskDecorator(self._registry, self._submission, self._tasks, chosen)
        # Names of the surrounding function are known to annotations too, as in a test.
        frame = inspect.currentframe()
        scope = frame.f_back.f_locals if frame is not None and frame.f_back is not None else {}
        definition = define_task(function, chosen, scope=scope)
        self._submission.connection.declarations.check(definition)
        self._registry.add(definition)
        kind = CoroutineTask if definition.coroutine else FunctionTask
        task: Task[..., Any] = kind(definition, self._submission)
        self._tasks[definition.name] = task
        return task
