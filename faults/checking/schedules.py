# SPDX-License-Identifier: MIT
"""What schedules fired while those who fire them were killed: every instant has its job, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from faults.checking.evidence import Verdict


class TimeTable(msgspec.Struct, frozen=True):
    """When one schedule should have fired, as its record says at last."""

    every_us: int
    anchor_us: int
    last_us: int  #: every fire up to here is dealt with

    @property
    def fires(self) -> range:
        """Every instant that was due."""
        return range(self.anchor_us + self.every_us, self.last_us + 1, self.every_us)


class Fires(msgspec.Struct, frozen=True):
    """What was due, and what is there at last."""

    schedules: Mapping[str, TimeTable] = {}
    jobs: Sequence[tuple[str, int]] = ()  #: schedule and instant of each job
    open: Sequence[str] = ()  #: ids of jobs that did not end completed


def judge(fires: Fires) -> Verdict:
    """Hold what was fired against every rule."""
    found = {name: list(rule(fires)) for name, rule in RULES.items()}
    due = sum(len(table.fires) for table in fires.schedules.values())
    return Verdict(found, dict.fromkeys(RULES, due))


def missing(fires: Fires) -> Iterator[str]:
    """Each instant that a schedule has dealt with has a job."""
    there = set(fires.jobs)
    for name, table in fires.schedules.items():
        for fire_us in table.fires:
            if (name, fire_us) not in there:
                yield f"{name} did not fire for {fire_us}"


def doubled(fires: Fires) -> Iterator[str]:
    """No instant has two jobs."""
    for (name, fire_us), number in Counter(fires.jobs).items():
        if number > 1:
            yield f"{name} fired {number} times for {fire_us}"


def strange(fires: Fires) -> Iterator[str]:
    """No job is of an instant that was not due."""
    for name, fire_us in fires.jobs:
        table = fires.schedules.get(name)
        if table is None or fire_us not in table.fires:
            yield f"{name} fired for {fire_us}, which was not due"


def not_completed(fires: Fires) -> Iterator[str]:
    """Every job of a fire ends completed."""
    for job_id in fires.open:
        yield f"{job_id} is not completed"


RULES: Final[Mapping[str, Callable[[Fires], Iterator[str]]]] = MappingProxyType(
    {
        "fire missing": missing,
        "fire doubled": doubled,
        "fire that was not due": strange,
        "not completed": not_completed,
    }
)
