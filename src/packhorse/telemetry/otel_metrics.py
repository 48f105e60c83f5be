# SPDX-License-Identifier: MIT
"""Histograms for the SDK of OpenTelemetry that take the values of many attempts at once.

To record one value, the SDK checks, copies, sorts and hashes its attributes: 13 µs, and attempts
have two values each. All values of a batch with the same attributes need that once. The API has no
word for it, so this asks the SDK's own aggregations, which have no public name, and holds itself to
the public way: before the first value both are tried on providers of their own, and unless they
export the same, also in a release that is not known here, every value is recorded by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

#: Seconds, up to an hour: jobs take longer than what the conventions advise.
_BOUNDS_S: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    *(300.0, 1800.0, 3600.0),
)
#: What both ways are tried with.
_TRIED: Final = (0.001, 0.3, 0.3, 7_200.0)


class HistogramOfMany:
    """A histogram of seconds; `together`: by the aggregations of the SDK."""

    def __init__(self, instrument: Any, *, together: bool) -> None:
        self._instrument = instrument
        self._together = together

    def record(self, values: Sequence[float], labels: Mapping[str, str]) -> None:
        """Record values that have these attributes in common; there is at least one."""
        # The first goes the public way, which sees to views, exemplars, and whether it is wanted.
        self._instrument.record(values[0], labels)
        if len(values) == 1:
            return
        if self._together:
            _aggregate(self._instrument, values[1:], labels)
            return
        for value in values[1:]:
            self._instrument.record(value, labels)


def histogram(meter: Any, name: str, description: str) -> HistogramOfMany:
    """Make one."""
    made: Any = meter.create_histogram(
        name, "s", description, explicit_bucket_boundaries_advisory=_BOUNDS_S
    )
    return HistogramOfMany(made, together=_is_known(made.__class__))


class _Measurement:
    """All that an aggregation asks of a measurement that is no exemplar."""

    __slots__ = ("value",)


def _aggregate(instrument: Any, values: Sequence[float], labels: Mapping[str, str]) -> None:
    """Give values to the aggregations of all readers and views."""
    if not instrument._is_enabled():  # noqa: SLF001 - as the module says; so are those below
        return
    for storage in instrument._measurement_consumer._reader_storages.values():  # noqa: SLF001
        for match in storage._get_or_init_view_instrument_match(instrument):  # noqa: SLF001
            _aggregate_in(match, values, labels)


def _aggregate_in(match: Any, values: Sequence[float], labels: Mapping[str, str]) -> None:
    from opentelemetry.sdk.metrics._internal import (  # noqa: PLC0415 - of the SDK
        _view_instrument_match as matching,
    )

    measurement: Any = _Measurement()
    kept = match._view._attribute_keys  # noqa: SLF001
    seen = {name: labels[name] for name in labels if kept is None or name in kept}
    key = matching._hash_attributes(seen)  # noqa: SLF001
    with match._lock:  # noqa: SLF001 - a reader of deltas takes aggregations away
        aggregate = match._get_or_create_aggregation(key, seen).aggregate  # noqa: SLF001
        for measurement.value in values:
            aggregate(measurement, False)  # no exemplar


@lru_cache(maxsize=16)
def _is_known(kind: type) -> bool:
    """Whether histograms of this class take values together as they take each by itself."""
    try:
        return _is_of_sdk(kind) and all(
            _exported(delta=delta, together=True) == _exported(delta=delta, together=False)
            for delta in (False, True)
        )
    except Exception:  # noqa: BLE001 - whatever it is, it is not what is known
        return False


def _is_of_sdk(kind: type) -> bool:
    from opentelemetry.sdk.metrics import Histogram  # noqa: PLC0415 - what the program sets up

    return kind.__module__ == Histogram.__module__ and issubclass(kind, Histogram)


def _exported(*, delta: bool, together: bool) -> list[Any]:
    """What a provider exports of values that are recorded in two batches."""
    from opentelemetry.sdk.metrics import Histogram, MeterProvider  # noqa: PLC0415 - as above
    from opentelemetry.sdk.metrics.export import (  # noqa: PLC0415 - as above
        AggregationTemporality,
        InMemoryMetricReader,
    )
    from opentelemetry.sdk.metrics.view import View  # noqa: PLC0415 - as above
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - as above

    wanted = AggregationTemporality.DELTA if delta else AggregationTemporality.CUMULATIVE
    reader = InMemoryMetricReader({Histogram: wanted})
    some = View(instrument_name="tried", name="some", attribute_keys={"kept"})
    views = (View(instrument_name="tried"), some) if delta else ()
    provider = MeterProvider([reader], Resource.get_empty(), views=views, shutdown_on_exit=False)
    instrument = provider.get_meter("tried").create_histogram(
        "tried", explicit_bucket_boundaries_advisory=_BOUNDS_S
    )
    tried = HistogramOfMany(instrument, together=together)
    found: list[Any] = []
    for labels in ({"kept": "a", "left": "b"}, {"kept": "a"}):
        tried.record(_TRIED, labels)
        data: Any = reader.get_metrics_data()
        found += [
            (metric.name, dict(p.attributes), p.count, p.sum, p.min, p.max, p.bucket_counts)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for p in metric.data.data_points
        ]
    provider.shutdown()
    return found
