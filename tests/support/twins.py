# SPDX-License-Identifier: MIT
"""On which stores, and in which cases, a test of whole processes is tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pytest

STORES: Final = ("sqlite", "postgres", "redis")


def ordinarily_on(*stores: str) -> list[Any]:
    """Every store, for `parametrize`: others than these only by `make test-slow`.

    For what is made of processes, not of a store's own code: each verb of each store is tried by
    the conformance suite, and kills on each of them by the tests of faults.
    """
    return ordinarily(STORES, *stores)


def ordinarily(cases: Sequence[str], *chosen: str) -> list[Any]:
    """Every case, for `parametrize`: others than those chosen only by `make test-slow`."""
    slow = pytest.mark.slow
    return [one if one in chosen else pytest.param(one, marks=slow) for one in cases]
