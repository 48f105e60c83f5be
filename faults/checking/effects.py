# SPDX-License-Identifier: MIT
"""What handlers did to the world, whose workers were killed: each effect that may be once, is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from faults.checking.evidence import Verdict


class Done(msgspec.Struct, frozen=True):
    """What was asked for, what was written down, and what is there at last."""

    jobs: frozenset[str] = frozenset()  #: that were submitted
    completed: frozenset[str] = frozenset()
    transactional: bool = True  #: the store has transactions
    rows: Sequence[str] = ()  #: the job of each row that was written in a transaction
    outside: Sequence[str] = ()  #: the job of each entry in a system that heeds keys
    #: What happened to steps, in order: (`ran` or `kept`, job, step, value).
    steps: Sequence[tuple[str, str, str, str]] = ()


def judge(done: Done) -> Verdict:
    """Hold what was done against every rule."""
    found = {name: list(rule(done)) for name, rule in RULES.items()}
    rows = len(done.jobs) if done.transactional else 0
    kept = sum(what == "kept" for what, *_ in done.steps)
    cases = (len(done.jobs), rows, len(done.jobs), kept)
    return Verdict(found, dict(zip(RULES, cases, strict=True)))


def not_completed(done: Done) -> Iterator[str]:
    """Every job ends completed, however often its worker was killed."""
    for job in sorted(done.jobs - done.completed):
        yield f"{job} is not completed"


def rows_not_once(done: Done) -> Iterator[str]:
    """A row of a transaction is there once if its job is completed, and else not at all."""
    there = Counter(done.rows)
    for job in sorted(done.jobs) if done.transactional else ():
        wanted = int(job in done.completed)
        if there[job] != wanted:
            yield f"{job} has {there[job]} rows, and should have {wanted}"


def outside_not_once(done: Done) -> Iterator[str]:
    """Each attempt gives the outside system the same key, so that it has one entry of a job."""
    there = Counter(done.outside)
    for job in sorted(done.completed):
        if there[job] != 1:
            yield f"{job} has {there[job]} entries outside"


def steps_not_once(done: Done) -> Iterator[str]:
    """A step that was kept does not run again, and has one value."""
    values: dict[tuple[str, str], str] = {}
    for what, job, step, value in done.steps:
        known = values.get((job, step))
        if what == "kept" and known in (None, value):
            values[job, step] = value
        elif known is not None:
            yield f"step {step} of {job} {what} {value} after it was kept as {known}"


RULES: Final[Mapping[str, Callable[[Done], Iterator[str]]]] = MappingProxyType(
    {
        "not completed": not_completed,
        "row of a transaction not once": rows_not_once,
        "keyed effect not once": outside_not_once,
        "kept step run again": steps_not_once,
    }
)
