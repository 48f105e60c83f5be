# SPDX-License-Identifier: MIT
"""Claim work with very many jobs that may not run: behind one busy key, or one exhausted limit.

Beside them stand a few that may. A claim that looked at every job it passes over would take as many
steps more as there are such jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Final

from benchmarks.bench import Bench
from benchmarks.contestants import packhorse_store
from benchmarks.measures.claim_work import counting
from packhorse.core.clock import new_ids
from packhorse.core.job import NewJob, RateRule
from packhorse.stores.protocol import Store
from packhorse.stores.requests import Claimed, ClaimRequest, Renewal, TaskSettings

STEPS: Final = "steps of a claim beside blocked jobs"
_KEY: Final = "a busy key"
_LIMIT: Final = "an exhausted limit"
#: Jobs given out in one claim, claims that are looked at, and those before them.
_BATCH: Final = 10
_CLAIMS: Final = 9
_WARM_UP: Final = 3
_CHUNK: Final = 1000
_LEASE_US: Final = 3_600_000_000
_WORKER: Final = "benchmark"
_QUEUES: Final = ("default",)
_TASKS: Final = ("free", "held")


def _key(_: Store) -> Mapping[str, Any]:
    return {"ordering_key": "busy"}


def _limit(store: Store) -> Mapping[str, Any]:
    rule = RateRule(max=1, window_us=_LEASE_US)
    store.run(store.queues.declare_tasks([TaskSettings("held", rate=rule)]))
    return {}


#: What jobs stand behind, and how that is set up: the fields of those jobs.
BEHIND: Final[Mapping[str, Callable[[Store], Mapping[str, Any]]]] = MappingProxyType(
    {_KEY: _key, _LIMIT: _limit}
)


def measure(bench: Bench) -> None:
    """With few and with many, behind each."""
    for behind in BEHIND:
        for count in (bench.settings.blocked_small, bench.settings.blocked_large):
            with bench.folder() as folder:
                steps = _claims(folder, behind, count)
            label = f"{count:,} behind {behind}"
            bench.ledger.record(STEPS, label, steps, "VM steps")
            bench.say(f"  blocked  {label:<34} {steps:>9,.0f} VM steps")


def _claims(folder: Path, behind: str, count: int) -> float:
    """The median steps of a claim that finds a few jobs beside `count` that may not run."""
    with _opened(folder) as store:
        fields = BEHIND[behind](store)
        _submit(store, "held", count + 1, fields)
        _claim(store, 1)  # from now on the key is busy, or the limit used up
        _submit(store, "free", _BATCH * (_CLAIMS + _WARM_UP), {})
        for _ in range(_WARM_UP):
            _claim(store, _BATCH)
    with counting() as counter, _opened(folder) as store:
        steps = [counter.steps_of(lambda: _claim(store, _BATCH)) for _ in range(_CLAIMS)]
    return median(steps)


@contextmanager
def _opened(folder: Path) -> Iterator[Store]:
    store = packhorse_store(folder, "NORMAL")
    try:
        store.run(store.leases.renew(Renewal(_WORKER, _LEASE_US, _QUEUES, _TASKS)))
        yield store
    finally:
        store.close()


def _submit(store: Store, task: str, count: int, fields: Mapping[str, Any]) -> None:
    for start in range(0, count, _CHUNK):
        ids: Sequence[str] = new_ids(min(_CHUNK, count - start))
        store.run(store.jobs.submit([NewJob(each, task, b"{}", **fields) for each in ids]))


def _claim(store: Store, limit: int) -> Claimed:
    request = ClaimRequest(_WORKER, _QUEUES, _TASKS, limit, _LEASE_US)
    claimed = store.run(store.jobs.claim(request))
    if len(claimed.jobs) != limit:
        raise RuntimeError(f"a claim of {limit} jobs gave {len(claimed.jobs)}")
    return claimed
