# SPDX-License-Identifier: MIT
"""How soon what a dead process ran was taken back, and how soon it ran again."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from faults.checking.evidence import Run, by_job
from faults.checking.timeline import Timeline
from packhorse.core.policies.lease import patience_us, suspicion_us

#: What a rescue may take beyond the lease.
BEYOND_LEASE_US: Final = 5_000_000
#: How long a worker may stand for suspects: 2 s until nothing runs, and 2 s beside one of them.
STANDS_US: Final = 4_000_000
#: How long a job waits once its own worker, or the supervisor of that, tells the store of its loss.
#: A rescuer counts this from the end of the lease, so that it is over when one comes.
WAITS_US: Final = 2_000_000
#: Between two looks of a rescuer, at most.
_LOOK_US: Final = 1_000_000


class Loss(msgspec.Struct, frozen=True):
    """A run that was cut off by the death of its process."""

    job_id: str
    attempt: int
    died_us: int
    taken_back_us: int | None  #: when the store wrote down that the attempt is over
    run_again_us: int | None
    excused_us: int = 0  #: for how long nothing could take it back; see `excused_us`
    number: int = 1  #: which loss of its job this is: each waits twice as long as the one before
    again_excused_us: int = 0  #: the same, until it ran again
    over: bool = False  #: the job ended without another run: it was cancelled, or is dead
    bound: bool = False  #: a limit, an order or another worker may have held it back
    fences: int = 1  #: from the claim that was lost to that of the next run
    story: str = ""  #: what the store knows of its attempts, for a look into a finding


class Losses(msgspec.Struct, frozen=True):
    """All of them, and the lease they are judged by."""

    lease_us: int
    losses: Sequence[Loss] = ()


def losses_of(
    runs: Sequence[Run],
    died_us: Mapping[int, int],
    ended_us: Mapping[tuple[str, int], int],
    lost_us: Mapping[tuple[str, int], int],
    claimed_us: Mapping[tuple[str, int], int] = MappingProxyType({}),
) -> Iterator[Loss]:
    """The runs whose process died, by what the store says of their attempts.

    `ended_us` is when each was over, `claimed_us` when each was begun, `lost_us` the same of those
    that count as lost: a worker that was stopped too long loses its jobs too, and lives, and one
    may die before the handler of a job that it was given has begun. A job runs again when a worker
    has claimed it: the process that a handler wants may have to be started first.
    """
    for job_id, job_runs in by_job(runs).items():
        for run in job_runs:
            if run.ended_us is not None or run.pid not in died_us:
                continue
            lost = {attempt: at_us for (name, attempt), at_us in lost_us.items() if name == job_id}
            again = [one for one in job_runs if one.fence > run.fence]
            later = [one.started_us for one in again]
            begun = lost | {n: at_us for (name, n), at_us in claimed_us.items() if name == job_id}
            later += [at_us for attempt, at_us in begun.items() if attempt > run.attempt]
            before = [attempt for attempt in lost if attempt < run.attempt]
            yield Loss(
                *(job_id, run.attempt, died_us[run.pid]),
                ended_us.get((job_id, run.attempt)),
                min(later, default=None),
                number=1 + len(before),
                fences=min((one.fence for one in again), default=run.fence + 1) - run.fence,
            )


def ran_late(losses: Losses) -> Iterator[str]:
    """Not run again within lease + 5 s of a first loss, without the time in which none could.

    A job must be taken back first, so what excuses a late rescue excuses this as well; what was
    lost twice may have a turn of its own meanwhile, in which nothing else begins; and whose loss
    is told by its own worker has to wait for a while then. Jobs that
    have to wait for a limit, or for others before them, are not judged, nor those that another
    worker had meanwhile and gave back: it was hit as well.
    """
    for loss in losses.losses:
        if loss.number > 1 or loss.over or loss.bound:
            continue
        if loss.run_again_us is None:
            yield f"{loss.job_id} attempt {loss.attempt} never ran again"
            continue
        took_us = loss.run_again_us - loss.died_us
        if took_us > losses.lease_us + BEYOND_LEASE_US + loss.again_excused_us:
            yield (
                f"{loss.job_id} attempt {loss.attempt} ran again after {took_us / 1e6:.1f} s, "
                f"{loss.again_excused_us / 1e6:.1f} s of them excused{loss.story}"
            )


def excused_us(
    span_us: tuple[int, int | None],
    lease_us: int,
    time: Timeline,
    away: Iterable[tuple[int, int]],
    stalls: Iterable[tuple[int, int]],
) -> int:
    """For how long of a span none could rescue: the store away, its clock set, the machine busy.

    A lease is gone when a rescuer saw it expired twice, which starts again each time that the
    store was away. After a step ahead every worker gets the time to renew; after a step back each
    lease lasts longer by the size of the step.
    """
    start_us, end_us = span_us
    if end_us is None:
        return 0
    again_us = suspicion_us(lease_us) + _LOOK_US
    overlaps_us = [min(end, end_us) - max(start, start_us) for start, end in away]
    excused = sum(spell + again_us for spell in overlaps_us if spell > 0)
    waits_us = [min(end, end_us) - max(start, start_us) for start, end in stalls]
    excused += sum(spell for spell in waits_us if spell > 0)
    moves_us = time.moves_us(start_us, end_us)
    excused += sum(-move_us + again_us for move_us in moves_us if move_us < 0)
    return excused + sum(patience_us(lease_us) + _LOOK_US for move_us in moves_us if move_us > 0)


def stood_us(span_us: tuple[int, int | None], suspects: Iterable[tuple[int, int]]) -> int:
    """For how long of a span workers may have stood for suspects, and begun nothing else."""
    start_us, end_us = span_us
    if end_us is None:
        return 0
    spells = [min(end, end_us) - max(start, start_us) for start, end in suspects]
    return min(STANDS_US, sum(spell for spell in spells if spell > 0))


def waited_us(message: str) -> int:
    """For how long a job had to wait after a loss of which the store was told in these words."""
    return WAITS_US if "its process" in message else 0


def late(losses: Losses) -> Iterator[str]:
    """Not taken back within lease + 5 s, without the time in which the store could not."""
    for loss in losses.losses:
        if loss.taken_back_us is None:
            yield f"{loss.job_id} attempt {loss.attempt} was never taken back"
            continue
        took_us = loss.taken_back_us - loss.died_us
        if took_us > losses.lease_us + BEYOND_LEASE_US + loss.excused_us:
            yield (
                f"{loss.job_id} attempt {loss.attempt} was taken back after {took_us / 1e6:.1f} s, "
                f"{loss.excused_us / 1e6:.1f} s of them excused{loss.story}"
            )


def cases(losses: Losses) -> dict[str, int]:
    """How many losses each rule has to judge."""
    free = [one for one in losses.losses if one.number == 1 and not one.over and not one.bound]
    return {"taken back late": len(losses.losses), "run again late": len(free)}


def summary(losses: Losses) -> dict[str, float]:
    """In seconds: until taken back, and until run again after a first loss and after any."""
    back = [one.taken_back_us - one.died_us for one in losses.losses if one.taken_back_us]
    first = [
        one.run_again_us - one.died_us
        for one in losses.losses
        if one.run_again_us and one.number == 1 and not one.bound
    ]
    again = [one.run_again_us - one.died_us for one in losses.losses if one.run_again_us]
    return {
        **_spread("taken back", back),
        **_spread("run again after a first loss", first),
        **_spread("run again after any loss", again),
    }


def _spread(name: str, spans_us: Sequence[int]) -> dict[str, float]:
    ordered = sorted(max(0, one) / 1e6 for one in spans_us)
    if not ordered:
        return {}
    p99 = ordered[math.ceil(0.99 * len(ordered)) - 1]
    return {
        f"{name}: number": len(ordered),
        f"{name}: median s": round(statistics.median(ordered), 2),
        f"{name}: p99 s": round(p99, 2),
        f"{name}: max s": round(ordered[-1], 2),
    }
