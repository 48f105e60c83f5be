# SPDX-License-Identifier: MIT
"""How long the sleeping handlers sleep; apart, for the measure knows it without the app."""

from __future__ import annotations

import math
from typing import Final

NAP_SECONDS: Final = 0.005
_MEAN_S: Final = 0.02
#: Spreads consecutive numbers evenly over all 32-bit ones.
_SPREAD: Final = 2_654_435_761
_NUMBERS: Final = 1 << 32


def nap_seconds(number: int) -> float:
    """A sleep of exponential length, the same for the same job in every run."""
    share = (number * _SPREAD % _NUMBERS + 0.5) / _NUMBERS
    return -_MEAN_S * math.log(share)
