# SPDX-License-Identifier: MIT
"""History: what was done and what waited, by minute, hour and day, as records of bounded size.

A worker writes parts: what its attempts came to within some seconds, or how queues stood at one
look. Parts of a minute are folded into the records of that minute, its hour and its day in one
change, so that each is counted once in every one of them. There are two records for each span: the
totals of queues, from which curves are drawn, and those of tasks, which are larger and fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from packhorse.core.policies.records import DOCUMENT_BYTES_MAX
from packhorse.core.policies.series import BOUNDS_S, OTHER, Series, bounded

PART_KIND: Final = "history_part"
_DAY_S: Final = 24 * 3_600
#: Parts wait to be folded for two minutes; longer only while no worker lives.
PART_KEPT_US: Final = 400 * _DAY_S * 1_000_000
#: Tasks in queues, and queues, that one record tells apart; the least used are one together.
_KEPT_MAX: Final = 200
_BUCKETS: Final = len(BOUNDS_S) + 1


class Tier(NamedTuple):
    """Spans of one length, and for how long their records are kept."""

    name: str
    span_s: int
    kept_s: int
    tasks_kept_s: int

    @property
    def kind(self) -> str:
        """Of the records with the totals of queues."""
        return f"history_{self.name}"

    @property
    def tasks_kind(self) -> str:
        """Of the records with those of tasks."""
        return f"history_{self.name}_tasks"


_MINUTE: Final = Tier("minute", 60, 2 * _DAY_S, 3 * 3_600)
_HOUR: Final = Tier("hour", 3_600, 35 * _DAY_S, 35 * _DAY_S)
_DAY: Final = Tier("day", _DAY_S, 400 * _DAY_S, 400 * _DAY_S)
TIERS: Final = (_MINUTE, _HOUR, _DAY)


class HistoryRange(NamedTuple):
    """How far back to look, and how finely."""

    span_s: int
    step_s: int
    tier: Tier  #: that curves are read from
    tasks_tier: Tier  #: that tasks are read from: whole spans of it


RANGES: Final = MappingProxyType(
    {
        "15m": HistoryRange(900, 60, _MINUTE, _MINUTE),
        "1h": HistoryRange(3_600, 60, _MINUTE, _MINUTE),
        "6h": HistoryRange(6 * 3_600, 300, _MINUTE, _HOUR),
        "24h": HistoryRange(_DAY_S, 900, _MINUTE, _HOUR),
        "7d": HistoryRange(7 * _DAY_S, 3_600, _HOUR, _HOUR),
        "30d": HistoryRange(30 * _DAY_S, 6 * 3_600, _HOUR, _DAY),
    }
)


class QueueTotals(msgspec.Struct, frozen=True, array_like=True):
    """What the attempts of a queue came to within a span, and how it stood at the looks in it."""

    queue: str
    outcomes: tuple[int, ...] = ()  #: attempts by `OUTCOMES`
    timeouts: int = 0
    waiting: int = 0  #: over all looks; so are those that ran
    running: int = 0
    waiting_max: int = 0
    oldest_ms: int = 0  #: the longest that a ready job had waited


class SpanTotals(msgspec.Struct, frozen=True, array_like=True):
    """The totals of all queues within a span."""

    looks: int = 0
    queues: tuple[QueueTotals, ...] = ()


class HistoryPart(msgspec.Struct, frozen=True, array_like=True):
    """What one worker adds: attempts by task, or one look at the queues."""

    series: tuple[Series, ...] = ()
    looked: SpanTotals = SpanTotals()


def key_of_span(start_s: int) -> str:
    """The key of the records of a span; keys sort as time does."""
    return f"{start_s:012d}"


def totals_of(parts: Iterable[HistoryPart]) -> SpanTotals:
    """The totals of queues that parts come to."""
    parts = list(parts)
    ended = tuple(
        QueueTotals(each.queue, each.outcomes, each.timeouts)
        for part in parts
        for each in part.series
    )
    return totals_added([SpanTotals(0, ended), *(part.looked for part in parts)])


def totals_added(spans: Iterable[SpanTotals]) -> SpanTotals:
    """The totals of several spans, added up."""
    looks, found = 0, dict[str, list[QueueTotals]]()
    for span in spans:
        looks += span.looks
        for each in span.queues:
            found.setdefault(each.queue, []).append(each)
    return SpanTotals(looks, tuple(_queue_sum(each) for each in found.values()))


def _queue_sum(rows: Sequence[QueueTotals]) -> QueueTotals:
    if len(rows) == 1:
        return rows[0]
    given = [row.outcomes for row in rows if row.outcomes]
    return QueueTotals(
        rows[0].queue,
        tuple(map(sum, zip(*given, strict=True))),
        sum([row.timeouts for row in rows]),
        sum([row.waiting for row in rows]),
        sum([row.running for row in rows]),
        max([row.waiting_max for row in rows]),
        max([row.oldest_ms for row in rows]),
    )


# --------------------------------------------------------------------------------------- documents

_PARTS: Final = msgspec.json.Decoder(HistoryPart)
_TOTALS: Final = msgspec.json.Decoder(SpanTotals)
_SERIES: Final = msgspec.json.Decoder(tuple[Series, ...])


def encode_part(part: HistoryPart) -> bytes:
    """A part as a document."""

    def encoded(most: int) -> bytes:
        looked = SpanTotals(part.looked.looks, _kept(part.looked.queues, most))
        packed = tuple(map(_packed, bounded(part.series, most)))
        return msgspec.json.encode(HistoryPart(packed, looked))

    return _fitting(encoded)


def decode_part(document: bytes) -> HistoryPart:
    """A part from its document."""
    part = _PARTS.decode(document)
    return HistoryPart(tuple(map(_unpacked, part.series)), part.looked)


def encode_totals(totals: SpanTotals) -> bytes:
    """Totals of queues as a document."""
    return _fitting(
        lambda most: msgspec.json.encode(SpanTotals(totals.looks, _kept(totals.queues, most)))
    )


def decode_totals(document: bytes) -> SpanTotals:
    """Totals of queues from their document."""
    return _TOTALS.decode(document)


def encode_series(series: Iterable[Series]) -> bytes:
    """Totals of tasks as a document."""
    found = tuple(series)
    return _fitting(lambda most: msgspec.json.encode([*map(_packed, bounded(found, most))]))


def decode_series(document: bytes) -> tuple[Series, ...]:
    """Totals of tasks from their document."""
    return tuple(map(_unpacked, _SERIES.decode(document)))


def _fitting(encoded: Callable[[int], bytes]) -> bytes:
    """The document with as many names told apart as a record holds."""
    most = _KEPT_MAX
    while len(document := encoded(most)) > DOCUMENT_BYTES_MAX and most > 1:
        most //= 2
    return document


def _kept(queues: Sequence[QueueTotals], most: int) -> tuple[QueueTotals, ...]:
    if len(queues) <= most:
        return tuple(queues)
    found = sorted(
        queues, key=lambda each: (each.queue == OTHER, -sum(each.outcomes) - each.waiting)
    )
    others = [msgspec.structs.replace(each, queue=OTHER) for each in found[most:]]
    return (*found[:most], _queue_sum(others))


def _packed(series: Series) -> Series:
    """With the buckets that are in use alone, after the number of the first."""
    return msgspec.structs.replace(series, run=_cut(series.run), wait=_cut(series.wait))


def _unpacked(series: Series) -> Series:
    return msgspec.structs.replace(series, run=_whole(series.run), wait=_whole(series.wait))


def _cut(buckets: tuple[int, ...]) -> tuple[int, ...]:
    used = [index for index, count in enumerate(buckets) if count]
    return (used[0], *buckets[used[0] : used[-1] + 1]) if used else ()


def _whole(cut: tuple[int, ...]) -> tuple[int, ...]:
    if not cut:
        return (0,) * _BUCKETS
    first, *counts = cut
    return (*((0,) * first), *counts, *((0,) * (_BUCKETS - first - len(counts))))
