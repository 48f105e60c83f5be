# SPDX-License-Identifier: MIT
"""What it costs on Redis to keep jobs on disk: the same drain with an append-only file."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.bench import Bench, drained
from benchmarks.contestants import ours_at
from tests.servers.redis import RedisServer, free_port

RATE: Final = "drain by what is kept on disk"
_KEPT: Final = (
    ("nothing", ()),
    ("appendfsync everysec", ("--appendonly", "yes", "--appendfsync", "everysec")),
    ("appendfsync always", ("--appendonly", "yes", "--appendfsync", "always")),
)


def measure(bench: Bench) -> None:
    """Each on a server of its own, once."""
    for label, options in _KEPT:
        with private_server(bench.directory, *options) as url, bench.folder() as folder:
            ours = ours_at(bench.stage.ours, url)
            reading = drained(bench, ours, folder, bench.settings.jobs)
        bench.ledger.record(RATE, label, reading.rate, "jobs/s")
        bench.say(f"  kept     {label:<30} {reading.rate:>9,.0f} jobs/s")


@contextmanager
def private_server(directory: Path, *options: str) -> Iterator[str]:
    """The URL of a server that is started for this, and ended."""
    folder = Path(tempfile.mkdtemp(dir=directory))
    server = RedisServer(folder, *options, port=free_port())
    try:
        yield server.url
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
