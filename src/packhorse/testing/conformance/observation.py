# SPDX-License-Identifier: MIT
"""Read everything there is to see of a store, in a form that can be compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from packhorse.core.job import TERMINAL, AttemptRecord, Counters, JobRecord
from packhorse.core.lifecycle import Orphan
from packhorse.stores.requests import Counts, ExpiredLease, JobFilter, Page
from packhorse.testing.conformance.drawn import QUEUES, TASKS, WORKERS
from packhorse.testing.conformance.trial import EVERYTHING, Trial

#: Budgets, which a redrive resets; every other counter only rises.
_BUDGETS = frozenset({"failures", "snoozes", "lone_crashes"})
#: What upkeep takes away from a finished job while its record stays.
_FADING = ("result", "result_expired")
#: A long history keeps this many lines.
_HISTORY_MAX = 50


class Observation(msgspec.Struct, frozen=True):
    """A store's whole observable state at one instant."""

    records: dict[str, JobRecord]
    histories: dict[str, tuple[AttemptRecord, ...]]
    rest: dict[str, Any]


def observe(
    trial: Trial, known: Observation | None = None, *, jobs_only: bool = False
) -> Observation:
    """Read everything; take histories of unchanged jobs from `known`."""
    store, run = trial.store, trial.store.run  # both runners see the same
    found = run(store.inspection.search(JobFilter(), limit=EVERYTHING)).jobs
    records = {job.id: _there(run(store.inspection.job(job.id))) for job in found}
    histories: dict[str, tuple[AttemptRecord, ...]] = {}
    for job_id, record in records.items():
        if known is not None and known.records.get(job_id) == record:
            histories[job_id] = known.histories[job_id]
        else:
            histories[job_id] = run(store.inspection.history(job_id))
    rest = {"search": found} | ({} if jobs_only else _beside_jobs(trial))
    return Observation(
        records=records,
        histories=histories,
        rest={name: comparable(answer) for name, answer in rest.items()},
    )


def _beside_jobs(trial: Trial) -> dict[str, Any]:
    store, run = trial.store, trial.store.run
    return {
        "counts": run(store.inspection.counts()),
        "depth": [run(store.queues.depth(queue)) for queue in QUEUES],
        "queues": run(store.queues.queues()),
        "workers": run(store.leases.workers()),
        "expired": run(store.leases.expired()).leases,
        "orphans": run(store.leases.orphans(WORKERS, limit=EVERYTHING)),
        "cancelled": [comparable(run(store.leases.cancelled(worker))) for worker in WORKERS],
        "outlook": [
            run(store.inspection.outlook(WORKERS[0], QUEUES, TASKS)),
            run(store.inspection.outlook(WORKERS[1], QUEUES[:1], TASKS[:1])),
        ],
    }


def _there(record: JobRecord | None) -> JobRecord:
    assert record is not None, "a search found a job that is not there"
    return record


def comparable(answer: Any) -> Any:
    """Return an answer without details that a store may choose: order of sets, zeros, cursors."""
    match answer:
        case Page():
            return answer.jobs
        case (ExpiredLease(), *_) | (Orphan(), *_) | (str(), *_):
            return sorted(answer, key=str)
        case (Counts(), *_):
            return [_without_zeros(each) for each in answer]
        case _:
            return answer


def _without_zeros(counts: Counts) -> Counts:
    present = {status: number for status, number in counts.by_status.items() if number}
    return msgspec.structs.replace(counts, by_status=present)


def check_change(
    before: Observation, after: Observation, *, redriven: Iterable[str], removing: bool
) -> None:
    """Check the invariants of a job between two observations."""
    for job_id, old in before.records.items():
        new = after.records.get(job_id)
        if new is None:
            assert removing, f"{job_id} is gone"
            assert old.status in TERMINAL, f"{job_id} was removed while {old.status}"
        elif job_id in redriven:
            _check_rising(old, new, spared=_BUDGETS)
        else:
            _check_rising(old, new, spared=frozenset())
            _check_terminal(old, new)
    for job_id, new in after.records.items():
        assert len(after.histories[job_id]) == min(new.counters.attempts, _HISTORY_MAX)


def _check_rising(old: JobRecord, new: JobRecord, *, spared: frozenset[str]) -> None:
    assert new.fence >= old.fence, f"the fence of {old.id} fell"
    for name in set(Counters.__struct_fields__) - spared:
        fell = getattr(new.counters, name) < getattr(old.counters, name)
        assert not fell, f"{name} of {old.id} fell"


def _check_terminal(old: JobRecord, new: JobRecord) -> None:
    if old.status in TERMINAL:
        faded = {name: getattr(new, name) for name in _FADING}
        assert msgspec.structs.replace(old, **faded) == new, f"{old.id} changed after its end"
