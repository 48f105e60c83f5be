# SPDX-License-Identifier: MIT
"""Every figure of a run: a series of values for each measure and contestant."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from benchmarks.estimates import Estimate, estimate


class Series(msgspec.Struct, frozen=True):
    """What one contestant reached in one measure, round by round."""

    measure: str
    contestant: str
    unit: str
    values: tuple[float, ...]

    @property
    def estimate(self) -> Estimate:
        """The median and its interval."""
        return estimate(self.values)


class Ledger:
    """Collects figures while a run goes on."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], list[float]] = {}
        self._units: dict[str, str] = {}

    def record(self, measure: str, contestant: str, value: float, unit: str) -> None:
        """Add one round's value."""
        known = self._units.setdefault(measure, unit)
        if known != unit:
            raise ValueError(f"{measure} is counted in {known}, not in {unit}")
        self._values.setdefault((measure, contestant), []).append(value)

    def series(self, measure: str, contestant: str) -> Series | None:
        """The values recorded, or None where there are none."""
        values = self._values.get((measure, contestant))
        if values is None:
            return None
        return Series(measure, contestant, self._units[measure], tuple(values))

    def __iter__(self) -> Iterator[Series]:
        for measure, contestant in self._values:
            series = self.series(measure, contestant)
            if series is not None:
                yield series
