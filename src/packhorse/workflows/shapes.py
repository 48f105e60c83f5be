# SPDX-License-Identifier: MIT
"""The two common workflows in one line: calls one after the other, and side by side.

chain(fetch.call(1), resize, store).start()
gather(fetch.call(1), fetch.call(2)).then(join).start()
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar, overload

from packhorse.call import Call
from packhorse.errors import UsageError
from packhorse.workflows.graph import Graph, Node
from packhorse.workflows.handle import Workflow
from packhorse.workflows.verbs import Flow

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
R = TypeVar("R")
S = TypeVar("S")
A_contra = TypeVar("A_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class Step(Protocol[A_contra, R]):
    """A task that takes one value: what comes before it in a chain returns that."""

    def call(self, value: A_contra, /) -> Call[R]:
        """A call with that value."""
        ...


class Arrangement(ABC, Generic[R_co]):
    """Calls that follow one another; the result is what the last one returns."""

    many = False  #: the result is a list of what several return

    def then(self, step: Step[R_co, S] | Call[S]) -> Arrangement[S]:
        """Continue with a task that takes the result, or with a call that does not."""
        return _Then(self, step)

    def start(self, name: str | None = None) -> Workflow:
        """Start it as a workflow of the app whose tasks are in it; return at once."""
        return self._flow(name).start()

    async def astart(self, name: str | None = None) -> Workflow:
        """As `start`, without blocking the event loop."""
        return await self._flow(name).astart()

    def _flow(self, name: str | None) -> Flow:
        for task in self.tasks():
            return Flow(task.submission, name, shape=self)
        raise UsageError(
            "no task in it says which app it is of: start it with app.workflow(name, ...).start()"
        )

    @abstractmethod
    def add_to(self, graph: Graph, after: Sequence[Node[Any]] = ()) -> list[Node[Any]]:
        """Add its nodes behind others; return the last ones."""

    @abstractmethod
    def tasks(self) -> Iterable[Any]:
        """The tasks in it, which know their app."""


class _One(Arrangement[R_co]):
    def __init__(self, call: Call[R_co]) -> None:
        self._call = call

    def add_to(self, graph: Graph, after: Sequence[Node[Any]] = ()) -> list[Node[Any]]:
        return [graph.place(self._call, after, "cancel", None)]

    def tasks(self) -> Iterable[Any]:
        return ()


class _Then(Arrangement[S]):
    def __init__(self, first: Arrangement[Any], step: Any) -> None:
        if not isinstance(step, Call | Arrangement) and not hasattr(step, "call"):
            raise UsageError(f"{step!r} is neither a task nor a call; give one of those")
        self.first = first
        self.step = step
        self.many = isinstance(step, Arrangement) and step.many

    def _links(self) -> list[_Then[Any]]:
        """Return all links of a chain, first to last; without recursion, since it may be long."""
        links: list[_Then[Any]] = [self]
        while isinstance(first := links[-1].first, _Then):
            links.append(first)
        return links[::-1]

    def add_to(self, graph: Graph, after: Sequence[Node[Any]] = ()) -> list[Node[Any]]:
        links = self._links()
        before = links[0].first.add_to(graph, after)
        for link in links:
            before = link.behind(graph, before)
        return before

    def behind(self, graph: Graph, before: list[Node[Any]]) -> list[Node[Any]]:
        """Add its own step behind these nodes."""
        step = self.step
        if isinstance(step, Arrangement):
            return step.add_to(graph, before)
        if not isinstance(step, Call):
            results = [node.result for node in before]
            step = step.call(results if self.first.many else results[0])
        return [graph.place(step, before, "cancel", None)]

    def tasks(self) -> Iterable[Any]:
        links = self._links()
        found = list(links[0].first.tasks())
        for link in links:
            if isinstance(link.step, Arrangement):
                found += link.step.tasks()
            elif not isinstance(link.step, Call):
                found.append(link.step)
        return found


class Gather(Arrangement[list[R]], Generic[R]):
    """Calls side by side; the result is the list of theirs, in their order."""

    many = True

    def __init__(self, parts: Sequence[Call[Any] | Arrangement[Any]]) -> None:
        self._parts = [_arranged(part) for part in parts]

    def add_to(self, graph: Graph, after: Sequence[Node[Any]] = ()) -> list[Node[Any]]:
        return [node for part in self._parts for node in part.add_to(graph, after)]

    def tasks(self) -> Iterable[Any]:
        return [task for part in self._parts for task in part.tasks()]


def _arranged(part: Call[R] | Arrangement[R]) -> Arrangement[R]:
    if isinstance(part, Arrangement):
        return part
    if not isinstance(part, Call):
        raise UsageError(f"{part!r} is not a call; make one with task.call(...)")
    return _One(part)


@overload
def chain(first: Call[A] | Arrangement[A], /) -> Arrangement[A]: ...
@overload
def chain(first: Call[A] | Arrangement[A], second: Step[A, B] | Call[B], /) -> Arrangement[B]: ...
@overload
def chain(
    first: Call[A] | Arrangement[A], second: Step[A, B] | Call[B], third: Step[B, C] | Call[C], /
) -> Arrangement[C]: ...
@overload
def chain(
    first: Call[A] | Arrangement[A],
    second: Step[A, B] | Call[B],
    third: Step[B, C] | Call[C],
    fourth: Step[C, D] | Call[D],
    /,
) -> Arrangement[D]: ...
@overload
def chain(
    first: Call[A] | Arrangement[A],
    second: Step[A, B] | Call[B],
    third: Step[B, C] | Call[C],
    fourth: Step[C, D] | Call[D],
    fifth: Step[D, E] | Call[E],
    /,
) -> Arrangement[E]: ...
@overload
def chain(
    first: Call[Any] | Arrangement[Any],
    second: Any,
    third: Any,
    fourth: Any,
    fifth: Any,
    sixth: Any,
    /,
    *steps: Any,
) -> Arrangement[Any]: ...
def chain(first: Any, /, *steps: Any) -> Any:
    """One after the other: each task is given what the one before it returned.

    The first is a call. A call further on is given nothing. Type checkers follow five of them.
    """
    shape: Arrangement[Any] = _arranged(first)
    for step in steps:
        shape = shape.then(step)
    return shape


@overload
def gather(*calls: Call[R] | Arrangement[R]) -> Gather[R]: ...
@overload
def gather(
    first: Call[A] | Arrangement[A], second: Call[B] | Arrangement[B], /
) -> Gather[A | B]: ...
@overload
def gather(
    first: Call[A] | Arrangement[A],
    second: Call[B] | Arrangement[B],
    third: Call[C] | Arrangement[C],
    /,
) -> Gather[A | B | C]: ...
@overload
def gather(*calls: Call[Any] | Arrangement[Any]) -> Gather[Any]: ...
def gather(*calls: Any) -> Any:
    """Side by side; `.then(task)` gives the list of results to a task when all have completed."""
    if not calls:
        raise UsageError("gather() was given no call; give at least one")
    return Gather(calls)
