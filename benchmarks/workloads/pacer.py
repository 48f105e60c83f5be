# SPDX-License-Identifier: MIT
"""Submits jobs at a steady pace, and prints the instant at which each submit returned.

`python -m benchmarks.workloads.pacer CONTESTANT COUNT`
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import Final

import msgspec

PER_SECOND: Final = 10
_SEED: Final = 7


def main(contestant: str, count: str) -> None:
    """Submit job 0, 1, 2 ..., ten a second on average, and print the instants."""
    sys.stdout.buffer.write(msgspec.json.encode(_pace(_submitter(contestant), int(count))))


def _submitter(contestant: str) -> Callable[[int], object]:
    if contestant == "huey":
        from benchmarks.workloads.huey_app import timed as peer_timed

        submit: Callable[[int], object] = peer_timed
        return submit
    from benchmarks.workloads import packhorse_app

    return packhorse_app.timed.enqueue


def _pace(submit: Callable[[int], object], count: int) -> list[float]:
    """The gaps vary, so that no poll of the worker can fall in step with them."""
    chance = random.Random(_SEED)
    instants = []
    for number in range(count):
        time.sleep(chance.uniform(0.5, 1.5) / PER_SECOND)
        submit(number)
        instants.append(time.monotonic())
    return instants


if __name__ == "__main__":
    main(*sys.argv[1:])
