# SPDX-License-Identifier: MIT
"""The jobs and the faults of a run, drawn from a seed: the same for every system."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, Literal

WORKERS: Final = 2
#: Jobs submitted each second. They keep a third of all slots busy, so that a job that comes back
#: waits for its queue's recovery and not for a free slot.
JOBS_PER_SECOND: Final = 2
_SHORT_SECONDS: Final = (0.2, 1.0)
_LONG_SECONDS: Final = (3.0, 8.0)
_LONG_SHARE: Final = 0.15
#: The faults come in cycles of about so long: four kills and a pause each.
_CYCLE_SECONDS: Final = 90
#: Longer than leases of 30 s.
_PAUSE_SECONDS_MAX: Final = 45.0
#: A killed worker is started again after so long.
_DOWN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Job:
    """One job: when it is submitted, and how long it takes."""

    number: int
    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one worker, when, and for how long it is away."""

    at: float
    kind: Literal["kill", "pause"]
    worker: int
    seconds: float


def jobs(seed: int, seconds: float) -> list[Job]:
    """What is submitted, in a steady stream as long as the schedule."""
    chance = random.Random(f"jobs {seed}")
    count = round(seconds * JOBS_PER_SECOND)
    return [Job(number, number / JOBS_PER_SECOND, _length(chance)) for number in range(count)]


def faults(seed: int, seconds: float) -> list[Fault]:
    """What happens to the workers, in order of time."""
    chance = random.Random(f"faults {seed}")
    cycles = max(1, round(seconds / _CYCLE_SECONDS))
    length = seconds / cycles
    return [
        fault
        for cycle in range(cycles)
        for fault in _cycle(chance, cycle * length, length, cycle % WORKERS)
    ]


def pause_seconds(seconds: float) -> float:
    """How long each pause of a schedule of that length is."""
    return max(one.seconds for one in faults(0, seconds) if one.kind == "pause")


def _length(chance: random.Random) -> float:
    span = _LONG_SECONDS if chance.random() < _LONG_SHARE else _SHORT_SECONDS
    return round(chance.uniform(*span), 3)


def _cycle(chance: random.Random, begin: float, length: float, paused: int) -> list[Fault]:
    """Two kills, a pause with a kill of the other worker meanwhile, and one more kill."""
    pause = min(_PAUSE_SECONDS_MAX, length / 2)
    first = chance.randrange(WORKERS)
    pause_at = begin + 0.3 * length

    def kill(at: float, worker: int) -> Fault:
        return Fault(round(at, 2), "kill", worker, _DOWN_SECONDS)

    return [
        kill(begin + length * chance.uniform(0.03, 0.09), first),
        kill(begin + length * chance.uniform(0.17, 0.23), 1 - first),
        Fault(round(pause_at, 2), "pause", paused, pause),
        kill(pause_at + pause * chance.uniform(0.3, 0.6), 1 - paused),
        kill(begin + length * chance.uniform(0.88, 0.95), chance.randrange(WORKERS)),
    ]
