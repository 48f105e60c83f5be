# SPDX-License-Identifier: MIT
"""Claim work with very many jobs that may not run: behind one busy key, or one exhausted limit.

A few jobs that may run stand beside them. A claim that looked at every blocked job would do more
work the more of them there are. The work is counted as in `claim_work` and `server_claims`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from benchmarks.bench import Bench
from benchmarks.bounds import Bound
from benchmarks.measures.server_claims import Counted
from benchmarks.settings import Settings
from packhorse.core.clock import new_ids
from packhorse.core.job import NewJob, RateRule
from packhorse.stores.protocol import Store
from packhorse.stores.requests import Claimed, ClaimRequest, Renewal, TaskSettings

WORK: Final = "work of a claim beside blocked jobs"
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


def bounds(settings: Settings) -> Iterator[Bound]:
    """Hardly more work beside many blocked jobs than beside few."""
    few, many = f"{settings.blocked_small:,}", f"{settings.blocked_large:,}"
    for behind in BEHIND:
        yield Bound(
            says=f"work of a claim with {many} jobs behind {behind} against {few}",
            measure=WORK,
            of=f"{many} behind {behind}",
            against=f"{few} behind {behind}",
            at_most=1.5,
        )


def measure(bench: Bench, counted: Counted, unit: str) -> None:
    """Count the work of a claim beside few and beside many blocked jobs, for each cause."""
    for behind in BEHIND:
        for count in (bench.settings.blocked_small, bench.settings.blocked_large):
            with bench.folder() as folder:
                _fill(bench, folder, behind, count)
                work = _claims(folder, counted)
            label = f"{count:,} behind {behind}"
            bench.ledger.record(WORK, label, work, unit)
            bench.say(f"  blocked  {label:<34} {work:>9,.0f} {unit}")


def _fill(bench: Bench, folder: Path, behind: str, count: int) -> None:
    """Store `count` jobs that may not run, and a few that may."""
    store = bench.stage.open_store(folder)
    try:
        _join(store)
        _submit(store, "held", count + 1, BEHIND[behind](store))
        _claim(store, 1)  # from now on the key is busy, or the limit used up
        _submit(store, "free", _BATCH * (_CLAIMS + 4 * _WARM_UP), {})
        for _ in range(_WARM_UP):  # the first claims set the blocked jobs aside
            _claim(store, _BATCH)
    finally:
        store.close()
    bench.stage.after_filling(folder)


def _claims(folder: Path, counted: Counted) -> float:
    """The work of one claim on average, without that of opening the store and the first claims."""

    def claims(store: Store, count: int) -> None:
        _join(store)
        for _ in range(count):
            _claim(store, _BATCH)

    counted(folder, lambda store: claims(store, _WARM_UP))  # the first opening costs more
    first = counted(folder, lambda store: claims(store, _WARM_UP))
    return (counted(folder, lambda store: claims(store, _WARM_UP + _CLAIMS)) - first) / _CLAIMS


def _join(store: Store) -> None:
    store.run(store.leases.renew(Renewal(_WORKER, _LEASE_US, _QUEUES, _TASKS)))


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
