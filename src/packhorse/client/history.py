# SPDX-License-Identifier: MIT
"""Read the history: what was done and what waited over the last minutes, hours or days.

Attempts are counted where a worker wrote of them, up to ten seconds after they ended. Percentiles
come from buckets: they are right within the width of one, at most a factor of 2.5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, NamedTuple, TypeVar

import msgspec

from packhorse.core.clock import SECOND_US, to_datetime
from packhorse.core.policies.history import (
    PART_KIND,
    RANGES,
    HistoryPart,
    HistoryRange,
    SpanTotals,
    decode_part,
    decode_series,
    decode_totals,
    key_of_span,
    totals_added,
    totals_of,
)
from packhorse.core.policies.records import RecordId
from packhorse.core.policies.series import OUTCOMES, Series, added, quantile
from packhorse.errors import ConfigError
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store
from packhorse.stores.records import all_records

T = TypeVar("T")

#: How often it is read again because a worker has folded meanwhile.
_TRIES: Final = 3
_FAILED: Final = ("retried", "dead")


class HistoryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a curve; what was not looked at is None."""

    at: datetime  #: when it begins
    span_ms: int  #: less than a step for the one that is not over
    attempts: int  #: that ended, in whatever way
    succeeded: int
    retried: int
    dead: int
    cancelled: int
    timeouts: int  #: of those retried and dead
    waiting: float | None  #: on average over the looks
    waiting_max: int | None
    running: float | None
    oldest_ready_ms: int | None  #: the longest that a ready job had waited


class QueueHistory(msgspec.Struct, frozen=True, kw_only=True):
    """One queue over the same steps."""

    queue: str
    attempts: int
    failed: int
    waiting: tuple[float | None, ...]
    waiting_max: int
    oldest_ready_ms: tuple[int | None, ...]
    oldest_ready_ms_max: int


class TaskHistory(msgspec.Struct, frozen=True, kw_only=True):
    """One task since `History.tasks_since`; spans are None where there was none."""

    task: str
    attempts: int
    succeeded: int
    retried: int
    dead: int
    timeouts: int
    per_minute: float
    wait_p50_ms: float | None
    wait_p95_ms: float | None
    wait_p99_ms: float | None
    run_p50_ms: float | None
    run_p95_ms: float | None
    run_p99_ms: float | None

    @property
    def failed(self) -> int:
        """Attempts that failed, whether a retry followed or not."""
        return self.retried + self.dead

    @property
    def failure_share(self) -> float:
        """Of the attempts that succeeded or failed, those that failed."""
        ended = self.succeeded + self.failed
        return self.failed / ended if ended else 0.0


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What was done and what waited over a range of time."""

    range: str
    since: datetime
    until: datetime
    step_ms: int
    tasks_since: datetime  #: whole hours or days, where the range is long
    points: tuple[HistoryPoint, ...]
    queues: tuple[QueueHistory, ...]
    tasks: tuple[TaskHistory, ...]  #: those with the most attempts first


def read_history(store: Store, name: str, *, queue: str | None = None) -> Asking[History]:
    """The history of a range, of all queues or of one."""
    chosen = RANGES.get(name)
    if chosen is None:
        raise ConfigError(f"{name!r} is no range of the history; give one of {', '.join(RANGES)}")
    stored = yield from _stored(store, chosen)
    step_s, now_us = chosen.step_s, stored.now_us
    since_s, until_s, tasks_since_s = _bounds(chosen, now_us)
    steps: dict[int, list[SpanTotals]] = {}
    series = [each for start_s, each in stored.tasks.items() if start_s < until_s]
    for start_s, totals in stored.spans.items():
        steps.setdefault(start_s // step_s * step_s, []).append(totals)
    for key, part in stored.parts.items():
        start_s = int(key.partition("/")[0])
        steps.setdefault(start_s // step_s * step_s, []).append(totals_of([part]))
        if tasks_since_s <= start_s < until_s:
            series.append(part.series)
    grid = range(since_s, until_s, step_s)
    totals_by_step = [totals_added(steps.get(start_s, ())) for start_s in grid]
    return History(
        range=name,
        since=to_datetime(since_s * SECOND_US),
        until=to_datetime(now_us),
        step_ms=step_s * 1_000,
        tasks_since=to_datetime(tasks_since_s * SECOND_US),
        points=tuple(
            _point(start_s, totals, queue, step_s, now_us)
            for start_s, totals in zip(grid, totals_by_step, strict=True)
        ),
        queues=_queues(totals_by_step, queue),
        tasks=_tasks(added(*series), queue, now_us / SECOND_US - tasks_since_s),
    )


class _Stored(NamedTuple):
    """What the store holds of a range."""

    parts: dict[str, HistoryPart]  #: not folded yet, by key
    spans: dict[int, SpanTotals]  #: by their first second
    tasks: dict[int, tuple[Series, ...]]
    now_us: int  #: the store's clock


def _stored(store: Store, chosen: HistoryRange) -> Asking[_Stored]:
    tries = 0
    while True:
        parts, now_us = yield from _parts(store)
        since_s, _, tasks_since_s = _bounds(chosen, now_us)
        kind, tasks_kind = chosen.tier.kind, chosen.tasks_tier.tasks_kind
        spans = yield from _records(store, kind, since_s, decode_totals)
        tasks = yield from _records(store, tasks_kind, tasks_since_s, decode_series)
        still, _ = yield from _parts(store)
        tries += 1
        # Else a worker has folded some of them meanwhile, and they would be counted twice.
        if parts.keys() <= still.keys() or tries == _TRIES:
            return _Stored(parts, spans, tasks, now_us)


def _bounds(chosen: HistoryRange, now_us: int) -> tuple[int, int, int]:
    """Where the steps begin and end, the last being under way; and where tasks begin."""
    until_s = (now_us // SECOND_US // chosen.step_s + 1) * chosen.step_s
    since_s, whole_s = until_s - chosen.span_s, chosen.tasks_tier.span_s
    return since_s, until_s, since_s // whole_s * whole_s


def _parts(store: Store) -> Asking[tuple[dict[str, HistoryPart], int]]:
    """What is not folded yet, by key, and the store's clock."""
    page = yield from all_records(store.records, PART_KIND)
    return {each.id.key: decode_part(each.document) for each in page.records}, page.now_us


def _records(
    store: Store, kind: str, since_s: int, decode: Callable[[bytes], T]
) -> Asking[dict[int, T]]:
    """The records of spans that begin then or later, by their first second."""
    after = RecordId(kind, "", key_of_span(since_s - 1)).text
    page = yield from all_records(store.records, kind, after=after)
    return {int(each.id.key): decode(each.document) for each in page.records}


def _point(
    start_s: int, totals: SpanTotals, queue: str | None, step_s: int, now_us: int
) -> HistoryPoint:
    rows = [each for each in totals.queues if queue in (None, each.queue)]
    given = [each.outcomes for each in rows if each.outcomes]
    counts = dict(zip(OUTCOMES, map(sum, zip(*given, strict=True)), strict=False))
    looks = totals.looks
    return HistoryPoint(
        at=to_datetime(start_s * SECOND_US),
        span_ms=max(1, min(step_s * 1_000, now_us // 1_000 - start_s * 1_000)),
        attempts=sum(counts.values()),
        succeeded=counts.get("success", 0),
        retried=counts.get("retried", 0),
        dead=counts.get("dead", 0),
        cancelled=counts.get("cancelled", 0),
        timeouts=sum(each.timeouts for each in rows),
        waiting=_mean(sum(each.waiting for each in rows), looks),
        waiting_max=max([0, *(each.waiting_max for each in rows)]) if looks else None,
        running=_mean(sum(each.running for each in rows), looks),
        oldest_ready_ms=max([0, *(each.oldest_ms for each in rows)]) if looks else None,
    )


def _mean(total: int, looks: int) -> float | None:
    return round(total / looks, 2) if looks else None


def _queues(steps: Sequence[SpanTotals], queue: str | None) -> tuple[QueueHistory, ...]:
    by_step = [{each.queue: each for each in totals.queues} for totals in steps]
    names = sorted({name for known in by_step for name in known if queue in (None, name)})
    found = []
    for name in names:
        rows = [known.get(name) for known in by_step]
        seen = [row for row in rows if row is not None]
        pairs = list(zip(rows, steps, strict=True))
        found.append(
            QueueHistory(
                queue=name,
                attempts=sum(sum(row.outcomes) for row in seen),
                failed=sum(_failed(row.outcomes) for row in seen),
                waiting=tuple(_mean(row.waiting if row else 0, span.looks) for row, span in pairs),
                waiting_max=max(row.waiting_max for row in seen),
                oldest_ready_ms=tuple(
                    (row.oldest_ms if row else 0) if span.looks else None for row, span in pairs
                ),
                oldest_ready_ms_max=max(row.oldest_ms for row in seen),
            )
        )
    return tuple(found)


def _failed(outcomes: Sequence[int]) -> int:
    return sum(count for word, count in zip(OUTCOMES, outcomes, strict=False) if word in _FAILED)


def _tasks(series: Sequence[Series], queue: str | None, span_s: float) -> tuple[TaskHistory, ...]:
    """By task, whichever queue it was in."""
    chosen = [each for each in series if queue in (None, each.queue)]
    by_task = added([msgspec.structs.replace(each, queue="") for each in chosen])
    found = [_task(each, span_s) for each in by_task if any(each.outcomes)]
    return tuple(sorted(found, key=lambda each: (-each.attempts, each.task)))


def _task(series: Series, span_s: float) -> TaskHistory:
    counts = dict(zip(OUTCOMES, series.outcomes, strict=True))
    attempts = sum(series.outcomes)
    spans = {
        f"{word}_p{share}_ms": _ms(quantile(buckets, share / 100))
        for word, buckets in (("wait", series.wait), ("run", series.run))
        for share in (50, 95, 99)
    }
    return TaskHistory(
        task=series.task,
        attempts=attempts,
        succeeded=counts["success"],
        retried=counts["retried"],
        dead=counts["dead"],
        timeouts=series.timeouts,
        per_minute=round(attempts / max(span_s, 1.0) * 60, 3),
        **spans,
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else float(f"{seconds * 1_000:.3g}")
