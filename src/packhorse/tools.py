# SPDX-License-Identifier: MIT
"""The tools a handler may use: functions of the app, of which its contract allows some."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from packhorse.errors import ConfigError, ToolNotAllowed, ToolNotFound

#: The tool that keeps results apart from the jobs, for tasks whose contract names it.
RESULT_TOOL: Final = "write_result_store"

Tool = Callable[..., Any]


class Tools(Mapping[str, Tool]):
    """`ctx.tools["search"](...)`: the app's tools by name; one that is not allowed is an error."""

    __slots__ = ("_allowed", "_known", "_task")

    def __init__(
        self, known: Mapping[str, Tool], allowed: Iterable[str] | None = None, task: str = ""
    ) -> None:
        self._known = known
        self._allowed = None if allowed is None else frozenset(allowed)
        self._task = task

    def __getitem__(self, name: str) -> Tool:
        if self._allowed is not None and name not in self._allowed:
            raise ToolNotAllowed(name, task=self._task, allowed=tuple(sorted(self._allowed)))
        tool = self._known.get(name)
        if tool is None:
            raise ToolNotFound(name, task=self._task)
        return tool

    def __contains__(self, name: object) -> bool:
        return name in self._known and (self._allowed is None or name in self._allowed)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._known if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __hash__(self) -> int:  # a mapping that compares has none
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def add_tool(tools: dict[str, Tool], name: object, function: object) -> None:
    """Register a tool; one name for two of them is a mistake."""
    if not isinstance(name, str) or not name:
        raise ConfigError(f"the name of a tool is {name!r}; give a text that is not empty")
    if not callable(function):
        raise ConfigError(f"tool {name!r} is {function!r}; give a function")
    if tools.setdefault(name, function) is not function:
        raise ConfigError(f"tool {name!r} is registered twice; give one of them another name")


#: Of a context that belongs to no app.
NO_TOOLS: Final = Tools(MappingProxyType({}))
