# SPDX-License-Identifier: MIT
"""Tasks of several modules: routers, which declare tasks without an app, and modules to import.

An app takes in routers at once. It imports modules when a task is first looked up: they usually
import the app, whose own module must be complete by then.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, cast

from packhorse.client.registry import Registry
from packhorse.client.store_access import Connection
from packhorse.client.submission import Submission
from packhorse.errors import ConfigError, UsageError
from packhorse.task import Task, TaskDecorator

#: Takes one task of a router into an app.
Take = Callable[[Task[..., Any]], None]

_HOW: Final = "give modules by their names, such as 'shop.mail', or routers"


class Router:
    """Tasks declared without an app, for one that includes them: `app.include(router)`.

    Each is named by the prefix and its own name: `Router(prefix="mail.")` makes `send` the task
    `mail.send`. Aliases are whole names.
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self._registry = Registry()
        self._tasks: dict[str, Task[..., Any]] = {}
        self._apps: dict[Connection, tuple[Take, str]] = {}
        self._submission = Submission(self._no_connection())
        #: `@router.task`, or `@router.task(queue="mail", ...)`, as `app.task` is.
        self.task = TaskDecorator(self._declare, self._submission, prefix=prefix)

    def join(self, connection: Connection, take: Take, where: str) -> None:
        """Give an app every task, those declared later too; `where` says who asked for that."""
        if connection not in self._apps:
            for task in self._tasks.values():
                take(task)
            self._apps[connection] = (take, where)
            self._choose_connection()

    def connect_through(self, before: Connection, connection: Connection) -> None:
        """An app that included this router uses another connection from now on."""
        self._apps = {
            connection if each is before else each: place for each, place in self._apps.items()
        }
        self._choose_connection()

    def leave(self, connection: Connection) -> None:
        """Forget an app that is no longer used; what it took in stays there."""
        self._apps.pop(connection, None)
        self._choose_connection()

    def __repr__(self) -> str:
        return f"<Router {self.prefix!r}: {', '.join(self._tasks) or 'no tasks'}>"

    def _declare(self, task: Task[..., Any]) -> None:
        self._registry.add(task.definition)
        self._tasks[task.name] = task
        for take, _ in self._apps.values():
            take(task)

    def _choose_connection(self) -> None:
        """Submit through the app that included this router, if it is one."""
        only = next(iter(self._apps)) if len(self._apps) == 1 else self._no_connection()
        self._submission.connection = only

    def _no_connection(self) -> Connection:
        return cast("Connection", _NoConnection(self.prefix, [at for _, at in self._apps.values()]))


class _NoConnection:
    """Stands where a connection would be, and says why there is none."""

    def __init__(self, prefix: str, places: list[str]) -> None:
        self._prefix = prefix
        self._places = places

    def __getattr__(self, name: str) -> Any:
        if not self._places:
            raise UsageError(
                f"this task is declared by Router(prefix={self._prefix!r}), which no app includes, "
                "so there is no store for its jobs; call app.include(router) before"
            )
        raise UsageError(
            f"this task is declared by Router(prefix={self._prefix!r}), which several apps include "
            f"({', '.join(self._places)}), so it is open which store its jobs belong to; submit it "
            f"as app.tasks[{self._prefix + '...'!r}].enqueue(...)"
        )


class Inclusion:
    """What an app includes: its routers, and the modules that it has not imported yet."""

    def __init__(self, connection: Connection, take: Take) -> None:
        self._connection = connection
        self._take = take
        self._routers: list[Router] = []
        self._modules: dict[str, str] = {}
        self._loaded: set[str] = set()

    @property
    def modules(self) -> tuple[str, ...]:
        """The names of the modules, imported or not."""
        return tuple(self._modules)

    def add(self, given: object, where: str) -> None:
        """Take in a router now, or a module later."""
        if isinstance(given, Router):
            given.join(self._connection, self._take, where)
            self._routers.append(given)
        elif isinstance(given, str) and all(part.isidentifier() for part in given.split(".")):
            self._modules.setdefault(given, where)
        else:
            raise ConfigError(f"include: {given!r} is neither a module nor a router; {_HOW}")

    def load(self) -> None:
        """Import the modules that are not imported yet, and take in the routers in them."""
        for name in [name for name in self._modules if name not in self._loaded]:
            module = self._imported(name)
            self._loaded.add(name)
            for value in list(vars(module).values()):
                if isinstance(value, Router):
                    self.add(value, self._modules[name])

    def connect_through(self, connection: Connection) -> None:
        """Submit the tasks of routers through another connection."""
        for router in self._routers:
            router.connect_through(self._connection, connection)
        self._connection = connection

    def release(self) -> None:
        """Leave every router, so that another app may include it alone."""
        for router in self._routers:
            router.leave(self._connection)

    def _imported(self, name: str) -> ModuleType:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            raise ConfigError(
                f"the app at {self._modules[name]} includes {name!r}, and there is no module "
                f"{error.name!r}; correct the name, or install what has it"
            ) from error


def caller_line() -> str:
    """Where the first caller outside this package stands, for messages."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("packhorse."):
        frame = frame.f_back
    return "?" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
