# SPDX-License-Identifier: MIT
"""The bounds on PostgreSQL and on Redis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from benchmarks.bounds import Bound
from benchmarks.contestants import BARE
from benchmarks.ledger import Ledger
from benchmarks.measures import (
    blocked_work,
    drain,
    idle,
    limits,
    memory,
    pickup,
    saturated,
    scaling,
    server_claims,
    shapes,
    snapshot,
    steady,
    steps,
    submit,
)
from benchmarks.measures.claiming import foreign_bound
from benchmarks.peers.catalogue import PEERS
from benchmarks.settings import Settings
from benchmarks.stores.lines import OURS, OURS_WITH_LINES

#: How many times faster than each peer a drain is.
_DRAINS: Final[Mapping[str, Mapping[str, float]]] = MappingProxyType(
    {
        "postgres": {"pgqueuer": 2, "oban": 8, "graphile": 1},
        "redis": {"dramatiq": 8, "taskiq": 8, "bullmq": 1.5},
    }
)
_BARE_SHARE: Final[Mapping[str, float]] = MappingProxyType({"postgres": 0.5, "redis": 0.4})


def postgres_bounds(settings: Settings, ledger: Ledger) -> list[Bound]:
    """All of them on PostgreSQL, in the order of the report."""
    return [*_common("postgres", settings, ledger), *_snapshots(settings)]


def redis_bounds(settings: Settings, ledger: Ledger) -> list[Bound]:
    """All of them on Redis."""
    return list(_common("redis", settings, ledger))


def _common(store: str, settings: Settings, ledger: Ledger) -> Iterator[Bound]:
    yield from _drain_bounds(store)
    yield from _submit_bounds(store, ledger)
    yield from _costs()
    yield from _waits()
    yield from _claims(settings)
    yield from shapes.bounds(settings.foreign)
    yield foreign_bound("work", server_claims.WORK, settings)
    if store == "redis":
        yield shapes.process_bound(next(peer.label for peer in PEERS if peer.name == "celery"))
    yield from limits.bounds()
    yield from blocked_work.bounds(settings)


def _drain_bounds(store: str) -> Iterator[Bound]:
    labels = {peer.name: peer.label for peer in PEERS}
    for name, times in _DRAINS[store].items():
        yield Bound(
            says=f"drain against {labels[name]}",
            measure=drain.RATE,
            of=OURS,
            against=labels[name],
            at_least=times,
        )
    yield _against_bare("drain", drain.RATE, _BARE_SHARE[store])
    yield Bound(
        says="two worker processes against one, 5 ms handlers",
        measure=scaling.SCALING,
        of=scaling.of_processes(OURS, 2),
        against=scaling.of_processes(OURS, 1),
        at_least=1.8,
    )
    if store == "postgres":
        yield steps.bound()
    yield Bound(
        says="handlers that sleep 20 ms on average, 50 slots, against the ideal time",
        measure=scaling.MIXED,
        of=OURS,
        at_least=0.9,
    )


def _submit_bounds(store: str, ledger: Ledger) -> Iterator[Bound]:
    singles = (("sync", submit.ONE), ("async", submit.ASYNC_ONE))
    for what, measure in singles:
        yield from _against_fastest(f"submit one ({what})", store, ledger, (measure, measure, 1))
        yield _against_bare(f"submit one ({what})", measure, 0.5)
    if fastest(store, submit.MANY, ledger) is None:
        for what, measure in singles:
            says = f"submit many, theirs one by one ({what}),"
            yield from _against_fastest(says, store, ledger, (submit.MANY, measure, 2))
    else:
        many = (submit.MANY, submit.MANY, 2)
        yield from _against_fastest("submit many", store, ledger, many)
    yield _against_bare("submit many", submit.MANY, 0.5)


def _against_fastest(
    what: str, store: str, ledger: Ledger, compared: tuple[str, str, float]
) -> Iterator[Bound]:
    """Against the peer in Python that was the fastest in this run, where there is one."""
    measure, theirs, times = compared
    peer = fastest(store, theirs, ledger)
    if peer is not None:
        yield Bound(
            says=f"{what} against {peer}, the fastest in Python",
            measure=measure,
            of=OURS,
            against=peer,
            against_measure=theirs,
            at_least=times,
        )


def fastest(store: str, measure: str, ledger: Ledger) -> str | None:
    """The Python peer with the highest median, if any was measured."""
    labels = [peer.label for peer in PEERS if peer.store == store and peer.is_python]
    measured = [series for label in labels if (series := ledger.series(measure, label))]
    best = max(measured, key=lambda series: series.estimate.middle, default=None)
    return None if best is None else best.contestant


def _against_bare(what: str, measure: str, share: float) -> Bound:
    return Bound(
        says=f"{what} against the bare loop",
        measure=measure,
        of=OURS,
        against=BARE,
        at_least=share,
    )


def _costs() -> Sequence[Bound]:
    return (
        Bound(
            says="worker CPU per job against the bare loop's",
            measure=drain.COST,
            of=OURS,
            against=BARE,
            at_most=3,
        ),
        Bound(
            says="worker CPU per job with a JSON line per start and end, against without",
            measure=drain.COST,
            of=OURS_WITH_LINES,
            against=OURS,
            at_most=2,
        ),
    )


def _waits() -> Sequence[Bound]:
    return (
        Bound(says="pick-up, median", measure=pickup.P50, of=OURS, at_most=5, unit="ms"),
        Bound(says="pick-up, 99th percentile", measure=pickup.P99, of=OURS, at_most=25, unit="ms"),
        saturated.BOUND,
        *steady.STEADY,
        Bound(says="idle worker", measure=idle.IDLE, of=OURS, at_most=1, unit="% of a core"),
        Bound(
            says="memory growth per 100,000 jobs after the first 100,000",
            measure=memory.GROWTH,
            of=OURS,
            at_most=1,
            unit="MiB",
        ),
    )


def _claims(settings: Settings) -> Iterator[Bound]:
    few, many = f"{settings.backlog_small:,}", f"{settings.backlog_large:,}"
    for state in ("waiting", "finished"):
        yield Bound(
            says=f"work of a claim with {many} jobs {state} against {few} waiting",
            measure=server_claims.WORK,
            of=f"{many} {state}",
            against=f"{few} waiting",
            at_most=1.3,
        )


def _snapshots(settings: Settings) -> Iterator[Bound]:
    yield Bound(
        says=f"drain of {settings.snapshot_backlog:,} jobs with an old snapshot held, against "
        "without",
        measure=snapshot.RATE,
        of=snapshot.HELD,
        against=snapshot.FREE,
        at_least=0.5,
    )
    yield Bound(
        says="steady wait under an old snapshot, p99 of the last minute against the first",
        measure=steady.GROWTH,
        of=steady.HELD,
        at_most=1.5,
    )
