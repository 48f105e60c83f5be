# SPDX-License-Identifier: MIT
"""Kill those who fire schedules at random instants, step the clock, and count the fires.

    python -m faults.schedules                               100 kills on each store
    python -m faults.schedules --store sqlite --kills 10 --seed 7

Three workers look at the same schedules. A worker is a fork, killed with SIGKILL, and the next one
follows at once. In between the store's clock is set forward and back by some seconds.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Final

import msgspec

from faults import report
from faults.checking.evidence import Verdict
from faults.checking.schedules import Fires, TimeTable, judge
from faults.clocks import SteppedClock
from faults.kill_runs import kill_run
from faults.stores.ground import Ground
from faults.stores.opening import opened
from faults.worlds import all_jobs
from packhorse import JobStatus, Packhorse
from packhorse.core.clock import SECOND_US
from packhorse.core.policies.records import Record
from packhorse.core.schedules import SCHEDULE_KIND, read_schedule

STORES: Final = ("sqlite", "postgres", "redis")
_WORKERS: Final = 3
_LEASE: Final = "1s"
#: The intervals, in milliseconds.
_EVERY_MS: Final = (200, 250, 300, 500, 700)
#: A worker is killed so long at most after the one before.
_BETWEEN_S: Final = 0.4
#: The clock is set by so much at most, after so many kills.
_STEP_S: Final = 3.0
_STEP_EACH: Final = 5
#: How long schedules go on after the last kill.
_CALM_S: Final = 4.0
_DRAIN_S: Final = 120.0


class Found(msgspec.Struct, frozen=True):
    """What a run came to."""

    store: str
    about: str
    kills: int
    steps: int  #: of the clock
    seed: int
    seconds: float
    fires: int
    verdict: Verdict


def create_app(ground: Ground) -> Packhorse:
    """An app with one task and its schedules, by the clock of the store."""
    clock = ground.clock
    app = Packhorse(ground.url, clock=None if clock is None else SteppedClock(clock))

    @app.task(max_crashes=1_000_000)
    def note() -> None:
        """Does nothing: what counts is that it was submitted."""

    for every_ms in _EVERY_MS:
        app.schedule(f"every {every_ms}", note.call(), every=every_ms / 1_000, catch_up="all")
    return app


def _work(ground: Ground, *, burst: bool) -> None:
    """What a fork does."""
    app = create_app(ground)
    app.run(concurrency=8, lease=_LEASE, burst=burst, handle_signals=False)
    app.close()


def run(store: str, folder: Path, *, kills: int, seed: int) -> Found:
    """Kill, let go on in peace, drain, and judge."""
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    ground = opened(store, folder)
    try:
        app = create_app(ground)
        app.store.migrate()
        app.close()
        steps = _kill(ground, kills, random.Random(seed))
        _drain(ground)
        fires = _collected(ground)
        about = ground.facts()["store"]
    finally:
        ground.close()
    seconds = round(time.monotonic() - began, 1)
    return Found(store, about, kills, steps, seed, seconds, len(fires.jobs), judge(fires))


def _kill(ground: Ground, kills: int, chance: random.Random) -> int:
    """Kill one of the workers again and again; says how often the clock was set."""
    workers = [_started(ground) for _ in range(_WORKERS)]
    steps = 0
    try:
        for number in range(1, kills + 1):
            time.sleep(chance.random() * _BETWEEN_S)
            index = chance.randrange(_WORKERS)
            _end(workers[index])
            workers[index] = _started(ground)
            if ground.can_step and number % _STEP_EACH == 0:
                ground.step(int(chance.uniform(-_STEP_S, _STEP_S) * SECOND_US))
                steps += 1
        time.sleep(_CALM_S + 2 * _STEP_S)  # also where the clock was set back last
    finally:
        for worker in workers:
            _end(worker)
    return steps


def _started(ground: Ground, *, burst: bool = False) -> ForkProcess:
    forks = multiprocessing.get_context("fork")
    worker = forks.Process(target=_work, args=(ground,), kwargs={"burst": burst})
    worker.start()
    return worker


def _end(worker: ForkProcess) -> None:
    os.kill(worker.pid or 0, signal.SIGKILL)
    worker.join()
    worker.close()


def _drain(ground: Ground) -> None:
    """Let what was fired finish; a burst fires nothing."""
    until = time.monotonic() + _DRAIN_S
    app = create_app(ground)
    while time.monotonic() < until:
        worker = _started(ground, burst=True)
        worker.join()
        if all(record.status.is_final for record in all_jobs(app).values()):
            break
    app.close()


def _collected(ground: Ground) -> Fires:
    app = create_app(ground)
    records = all_jobs(app)
    found = app.store.run(app.store.records.records(SCHEDULE_KIND, limit=len(_EVERY_MS))).records
    app.close()
    fired = [record.options for record in records.values() if record.options is not None]
    return Fires(
        schedules=dict(map(_time_table, found)),
        jobs=[(each.schedule or "", each.scheduled_for_us or 0) for each in fired],
        open=[record.id for record in records.values() if record.status is not JobStatus.COMPLETED],
    )


def _time_table(record: Record) -> tuple[str, TimeTable]:
    schedule = read_schedule(record.document)
    every_us = schedule.timing.every_us or 0
    return schedule.name, TimeTable(every_us, schedule.anchor_us, schedule.last_us)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run each store asked for, and write the report."""
    return kill_run("schedules", STORES, run, _told, page, kills=100, arguments=arguments)


def _told(found: Found) -> str:
    done = f"{found.kills} kills and {found.steps} steps of the clock in {found.seconds} s"
    return f"{done}, {found.fires} fires"


def page(found: Sequence[Found]) -> str:
    """The report as Markdown."""
    rows = [f"| | {' | '.join(one.store for one in found)} |", f"| --- |{' ---: |' * len(found)}"]
    values: dict[str, list[object]] = {
        "seconds": [one.seconds for one in found],
        "kills": [one.kills for one in found],
        "steps of the clock": [one.steps for one in found],
        "fires": [one.fires for one in found],
    }
    for rule in found[0].verdict.findings:
        values[f"**{rule}**, must be 0"] = [len(one.verdict.findings[rule]) for one in found]
    rows += [f"| {name} | {' | '.join(map(str, each))} |" for name, each in values.items()]
    where = [f"- {one.store}: {one.about}" for one in found]
    machine = [f"- {name}: {value}" for name, value in report.machine().items()]
    how = (
        f"`python -m faults.schedules --kills {found[0].kills} --seed {found[0].seed}`: three "
        "workers with five schedules of 200 to 700 ms, one of them killed with SIGKILL every "
        "0.4 s at most, the store's clock set forward and back by 3 s at most. What each rule "
        "means is said in `faults/checking/schedules.py`."
    )
    parts = ("# Schedules whose workers are killed", how, "\n".join([*where, *machine]))
    return "\n\n".join([*parts, "\n".join(rows)]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
