# SPDX-License-Identifier: MIT
"""A fleet of processes and one circuit breaker: calls that find out come one at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from packhorse import JobStatus
from packhorse.breaker import Breaker
from packhorse.core.clock import SystemClock
from packhorse.runtime.worker.contexts import breaker_book
from tests.end_to_end.support import World, until
from tests.support.twins import ordinarily_on

WORKERS = 3
PROBES = 4


@pytest.mark.parametrize("store", ordinarily_on("redis"))
def test_the_whole_fleet_probes_one_call_at_a_time(world: World, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.touch()
    with world.app() as app:
        book = breaker_book(app.store, SystemClock.monotonic)
        rule: dict[str, Any] = {"failures": 1, "window": "1m", "open_for": "0.2s", "tenant": ""}
        with (
            pytest.raises(OSError, match="down"),
            Breaker(book, "bank", trip_on=(OSError,), **rule),
        ):
            raise OSError("down")
        tasks = [app.tasks["guarded"], app.tasks["guarded_in_process"]]
        jobs = [task.enqueue(str(broken)) for task in tasks for _ in range(6)]
        for _ in range(WORKERS):
            world.worker("--concurrency", "4", "--process-slots", "1")

        world.heard("end", times=PROBES)
        broken.unlink()
        until("all jobs", lambda: all(job.status() is JobStatus.COMPLETED for job in jobs))

        lines = [line for line in world.lines() if line.event in ("begin", "end", "answered")]
        first = next(at for at, line in enumerate(lines) if line.event == "answered")
        probes = [line for line in lines[: first + 2] if line.event != "answered"]
        assert len(probes) >= 2 * PROBES
        assert [line.event for line in probes] == ["begin", "end"] * (len(probes) // 2)
        pairs = zip(probes[::2], probes[1::2], strict=True)
        assert all((one.job_id, one.fence) == (two.job_id, two.fence) for one, two in pairs)
        failed = sum(job.info().failures for job in jobs)
        assert failed == len(probes) // 2 - 1  # those who were refused have none
