# SPDX-License-Identifier: MIT
"""What became of batches and workflows whose workers were killed: each part once, in its order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from faults.checking.evidence import Verdict

#: What follows a batch of which every item succeeds.
CALLBACKS: Final = ("complete", "success")


class Graph(msgspec.Struct, frozen=True):
    """A workflow: as it was started, and as it stands at last."""

    parents: Mapping[str, Sequence[str]]  #: by node
    states: Mapping[str, str]  #: of nodes
    completed: int  #: nodes, as it counts them
    state: str


class Counted(msgspec.Struct, frozen=True):
    """A batch: what it was given, and its counts at last."""

    items: int
    total: int
    processed: int
    succeeded: int
    percentage: float
    status: str
    members: int = 0  #: its jobs
    ended: int = 0  #: lines of the journal that told the end of one, less those taken back


class Happened(msgspec.Struct, frozen=True):
    """All that is known once everything is over; nodes are named `workflow/node`."""

    graphs: Mapping[str, Graph] = {}
    batches: Mapping[str, Counted] = {}
    ran: Sequence[tuple[str, str]] = ()  #: (`start` or `end`, node), in order
    completions: Sequence[str] = ()  #: nodes, once for each job that completed
    callbacks: Sequence[tuple[str, str]] = ()  #: (batch, kind), once for each completed job
    items: Sequence[tuple[str, int]] = ()  #: (batch, item) for which a handler has ended
    open: Sequence[str] = ()  #: jobs that have not completed
    lines: Sequence[str] = ()  #: of the journal, that were not folded: jobs


def judge(happened: Happened) -> Verdict:
    """Hold what happened against every rule."""
    found = {name: list(rule(happened)) for name, rule in RULES.items()}
    nodes = sum(len(graph.parents) for graph in happened.graphs.values())
    edges = sum(len(each) for graph in happened.graphs.values() for each in graph.parents.values())
    items = sum(batch.items for batch in happened.batches.values())
    callbacks = len(CALLBACKS) * len(happened.batches)
    members = nodes + sum(batch.members for batch in happened.batches.values())
    groups = len(happened.batches) + len(happened.graphs)
    cases = (nodes, edges, items, callbacks, groups, nodes, members)
    return Verdict(found, dict(zip(RULES, cases, strict=True)))


def nodes_not_once(happened: Happened) -> Iterator[str]:
    """Every node has one job that completed."""
    jobs = Counter(happened.completions)
    for name, graph in happened.graphs.items():
        for node in graph.parents:
            if jobs[f"{name}/{node}"] != 1:
                yield f"{name}/{node} has {jobs[f'{name}/{node}']} jobs that completed"
            if graph.states.get(node) != "completed":
                yield f"{name}/{node} is {graph.states.get(node)}"


def before_parents(happened: Happened) -> Iterator[str]:
    """No handler of a node starts before one of each parent has ended."""
    parents = {
        f"{name}/{node}": [f"{name}/{one}" for one in each]
        for name, graph in happened.graphs.items()
        for node, each in graph.parents.items()
    }
    ended: set[str] = set()
    for event, node in happened.ran:
        if event == "end":
            ended.add(node)
            continue
        for parent in parents.get(node, ()):
            if parent not in ended:
                yield f"{node} started before {parent} had ended"


def items_not_once(happened: Happened) -> Iterator[str]:
    """Every item was handled, and is counted once."""
    handled = set(happened.items)
    for name, batch in happened.batches.items():
        for number in range(batch.items):
            if (name, number) not in handled:
                yield f"item {number} of {name} was not handled"
        if (batch.total, batch.processed, batch.succeeded) != (batch.items,) * 3:
            told = f"{batch.processed} processed and {batch.succeeded} succeeded of {batch.total}"
            yield f"{name} has {batch.items} items, and counts {told}"


def callbacks_not_once(happened: Happened) -> Iterator[str]:
    """Each callback of a batch is one job, which completed."""
    there = Counter(happened.callbacks)
    for name in happened.batches:
        for kind in CALLBACKS:
            if there[name, kind] != 1:
                yield f"on_{kind} of {name} is there {there[name, kind]} times"


def progress_not_exact(happened: Happened) -> Iterator[str]:
    """At the end progress says that all is done."""
    for name, batch in happened.batches.items():
        if (batch.status, batch.percentage) != ("completed", 100.0):
            yield f"{name} is {batch.status} at {batch.percentage} %"
    for name, graph in happened.graphs.items():
        if (graph.state, graph.completed) != ("completed", len(graph.parents)):
            yield f"{name} is {graph.state} with {graph.completed} of {len(graph.parents)} nodes"


def left_open(happened: Happened) -> Iterator[str]:
    """No job is left."""
    for job in happened.open:
        yield f"{job} has not completed"


def lines_not_once(happened: Happened) -> Iterator[str]:
    """The end of each member is told by one line of the journal, and that line was counted once."""
    for name, batch in happened.batches.items():
        if batch.ended != batch.members:
            yield f"{name} has {batch.members} jobs, and was told of {batch.ended} ends"
    for name, graph in happened.graphs.items():
        ended = sum(state == "completed" for state in graph.states.values())
        if graph.completed != ended:
            yield f"{name} has {ended} nodes that completed, and counts {graph.completed}"
    for job in happened.lines:
        yield f"the line about the end of {job} was never folded"


RULES: Final[Mapping[str, Callable[[Happened], Iterator[str]]]] = MappingProxyType(
    {
        "node not once completed": nodes_not_once,
        "child before its parent": before_parents,
        "item not once counted": items_not_once,
        "callback not once": callbacks_not_once,
        "progress not exact": progress_not_exact,
        "job left open": left_open,
        "line of the journal not once": lines_not_once,
    }
)
