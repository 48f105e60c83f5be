# SPDX-License-Identifier: MIT
"""Submits jobs at random instants, and notes when each submit began and when it returned.

`python -m benchmarks.workloads.poisson BEGUN RETURNED FIRST COUNT PER_SECOND PRIORITY` submits jobs
FIRST, FIRST + 1, ... The store is named by PACKHORSE_URL.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Literal, cast

from benchmarks.probe import stamper
from benchmarks.workloads.shapes_app import app, stamped


def main(begun: str, returned: str, *words: str) -> None:
    """Submit them; a submit that takes long makes the next ones come at once."""
    first, count, per_second, priority = words
    note_begun, note_returned = stamper(begun), stamper(returned)
    task = stamped.using(priority=cast("Literal['normal', 'high']", priority))
    chance = random.Random(int(first))
    due = time.monotonic()
    try:
        for number in range(int(first), int(first) + int(count)):
            due += chance.expovariate(float(per_second))
            time.sleep(max(0.0, due - time.monotonic()))
            note_begun(number)
            task.enqueue(number)
            note_returned(number)
    finally:
        app.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
