# SPDX-License-Identifier: MIT
"""Convert the store's clock to the machine's, after a fault has stepped the store's.

After a step back the same instant of the store comes twice, so there is an earliest and a latest
moment that it may have been. Rules get the one that speaks for the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

#: How long a statement may take that has read the store's clock before a step.
_MARGIN_US: Final = 300_000
_NEVER: Final = 1 << 62


class Step(msgspec.Struct, frozen=True):
    """The store's clock was set: so far ahead of the machine's from then on."""

    at_us: int  #: by the machine's clock
    offset_us: int


class Timeline:
    """Every step, in order; before the first the clocks agree."""

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self.steps = steps
        offsets = [0, *(step.offset_us for step in steps)]
        starts = [0, *(step.at_us for step in steps)]
        ends = [*(step.at_us for step in steps), _NEVER]
        self._parts = list(zip(starts, ends, offsets, strict=True))

    def earliest(self, store_us: int) -> int:
        """The first moment at which the store's clock may have shown this."""
        return min(self._moments(store_us))

    def latest(self, store_us: int) -> int:
        """The last one."""
        return max(self._moments(store_us))

    def doubtful(self, store_us: int) -> bool:
        """Whether it may have been at more than one moment."""
        return len(set(self._moments(store_us))) > 1

    def moves_us(self, from_us: int, until_us: int) -> list[int]:
        """By how much the store's clock was set each time, ahead or back, in that time."""
        offsets = [0, *(step.offset_us for step in self.steps)]
        moves = zip(self.steps, offsets, offsets[1:], strict=False)
        return [
            after - before for step, before, after in moves if from_us <= step.at_us <= until_us
        ]

    def _moments(self, store_us: int) -> list[int]:
        found = [
            store_us - offset_us
            for start_us, end_us, offset_us in self._parts
            if start_us - _MARGIN_US <= store_us - offset_us < end_us + _MARGIN_US
        ]
        if found:
            return found
        # A step ahead has left it out: then it was at the step, or about.
        return [min((step.at_us for step in self.steps), key=lambda at_us: abs(store_us - at_us))]
