# SPDX-License-Identifier: MIT
"""A big backlog on PostgreSQL while another connection holds an old snapshot, as a backup does.

What was updated may not be cleared away then, so a claim that has to step over it slows down.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psycopg

from benchmarks.bench import Bench, filled, worked_off
from benchmarks.stage import Stage

RATE: Final = "drain of a big backlog"
FREE: Final = "no old snapshot"
HELD: Final = "an old snapshot held"


def measure(bench: Bench) -> None:
    """Without, and with a snapshot from before the first job until after the last."""
    ours, count = bench.stage.ours, bench.settings.snapshot_backlog
    for label in (FREE, HELD):
        with bench.folder() as folder:
            filled(ours, folder, "many", 1)  # the tables are there, and the snapshot knows them
            with _holding(bench.stage, folder, held=label == HELD):
                filled(ours, folder, "many", count - 1)
                bench.stage.after_filling(folder)
                reading = worked_off(ours, folder, count)
        bench.ledger.record(RATE, label, reading.rate, "jobs/s")
        bench.say(f"  snapshot {label:<30} {reading.rate:>9,.0f} jobs/s")


@contextmanager
def _holding(stage: Stage, folder: Path, *, held: bool) -> Iterator[None]:
    if not held:
        yield
        return
    with psycopg.connect(stage.server(folder)) as connection:
        connection.execute("set transaction isolation level repeatable read")
        connection.execute("select count(*) from pg_class")
        yield
