# SPDX-License-Identifier: MIT
"""The peer: Huey on SQLite, as it comes, with the same jobs. `huey_consumer` imports `huey`.

Huey has no async handlers and no bulk submit. It leaves `synchronous` as SQLite has it, which is
FULL, so it is compared with Packhorse at FULL. `python -m benchmarks.workloads.huey_app` prints it.
"""

from __future__ import annotations

import os
from typing import Final

from huey import SqliteHuey

from benchmarks.probe import hitter, stamper

#: Environment variable that names the database file.
FILE: Final = "BENCHMARK_HUEY_FILE"

huey = SqliteHuey("benchmark", filename=os.environ[FILE])
_hit = hitter()
_stamp = stamper()


@huey.task()  # type: ignore[untyped-decorator]  # Huey ships no types
def noop(number: int) -> int:
    _hit()
    return number


@huey.task()  # type: ignore[untyped-decorator]  # as above
def timed(number: int) -> int:
    _stamp(number)
    return number


def synchronous() -> str:
    """The durability that Huey's own connection really has."""
    number: int = huey.storage.conn.execute("pragma synchronous").fetchone()[0]
    return ("OFF", "NORMAL", "FULL", "EXTRA")[number]


if __name__ == "__main__":
    print(synchronous())
