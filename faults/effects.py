# SPDX-License-Identifier: MIT
"""Kill a worker at random instants of handlers that have effects, and count what happened twice.

    make effects                                             200 kills on each store
    make effects OPTIONS="--store sqlite --kills 20 --seed 7"

Each handler has two steps, an effect in an outside system that heeds keys, and, where the store has
them, a transaction with a row. A worker is a fork, killed with SIGKILL some time after its first
handler began; the next one follows at once.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from faults import report
from faults.checking.effects import Done, judge
from faults.checking.evidence import Verdict
from faults.kill_runs import kill_run
from faults.records import RECORDS_VARIABLE, Recorder, read_lines
from faults.stores.ground import Ground
from faults.stores.opening import opened
from faults.worlds import all_jobs
from packhorse import Context, JobStatus, Packhorse
from packhorse.core.clock import new_id

STORES: Final = ("sqlite", "postgres", "redis")
_JOBS: Final = 12  # for each kill: enough that the last one finds handlers under way
_LEASE: Final = "1s"
#: A handler rests so long at most between two of its parts, so that kills find it anywhere.
_REST_S: Final = 0.012
#: A worker lives so long at most after its first handler began.
_LIFE_S: Final = 0.25
_DRAIN_S: Final = 240.0
_OUTSIDE: Final = "create table entries (key text primary key, job text)"
_record: Final = Recorder()


class Found(msgspec.Struct, frozen=True):
    """What a run came to."""

    store: str
    about: str
    kills: int
    seed: int
    seconds: float
    interrupted: int  #: attempts that were killed in the middle
    verdict: Verdict
    facts: dict[str, int]


def create_app(url: str, folder: Path, begun: int | None = None) -> Packhorse:
    """An app with one task, which has all effects; `begun` hears of its first start."""
    app = Packhorse(url)
    chance = random.Random()

    def rest() -> None:
        time.sleep(chance.random() * _REST_S)

    @app.task(max_crashes=1_000_000)
    def effects(ctx: Context) -> list[str]:
        if begun is not None:
            with suppress(OSError):
                os.write(begun, b".")
        _record.write("start", ctx)

        def step(name: str) -> str:
            value = new_id()
            _record.write("ran", ctx, note=f"{name} {value}")
            rest()
            return value

        values = []
        for name in ("reserve", "charge"):
            values.append(ctx.step(name, step, name))
            _record.write("kept", ctx, note=f"{name} {values[-1]}")
            rest()
            if name == "reserve":
                _enter(folder / "outside.db", ctx)
        if not url.startswith("redis"):
            with ctx.transaction() as tx:
                tx.connection.execute(f"insert into paid values ('{ctx.job.id}')")
                rest()
                tx.complete(values)
        rest()
        _record.write("end", ctx)
        return values

    return app


def _enter(path: Path, ctx: Context) -> None:
    """The outside system: an entry for each key it has not seen."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as outside:
        key = ctx.idempotency_key("enter")
        outside.execute("insert or ignore into entries values (?, ?)", (key, ctx.job.id))


def _work(url: str, folder: Path, begun: int | None, *, burst: bool) -> None:
    """What a fork does."""
    app = create_app(url, folder, begun)
    app.run(concurrency=16 if burst else 4, lease=_LEASE, burst=burst, handle_signals=False)
    app.close()


def _asked(ground: Ground, statement: str) -> list[tuple[Any, ...]]:
    """Ask the database that the jobs are in."""
    if ground.name == "sqlite":
        path = ground.url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as file:
            return file.execute(statement).fetchall()
    import psycopg

    with psycopg.connect(ground.url, autocommit=True) as server:
        cursor = server.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def run(store: str, folder: Path, *, kills: int, seed: int) -> Found:
    """Kill, drain, and judge."""
    began = time.monotonic()
    (folder / "records").mkdir(parents=True)
    os.environ[RECORDS_VARIABLE] = str(folder / "records")
    ground = opened(store, folder)
    try:
        app = create_app(ground.url, folder)
        with closing(sqlite3.connect(folder / "outside.db")) as outside:
            outside.execute("pragma journal_mode = wal")
            outside.execute(_OUTSIDE)
        if store != "redis":
            _asked(ground, "create table paid (job text)")
        jobs = frozenset(
            job.id for job in app.tasks["effects"].enqueue_many([{}] * (_JOBS * kills))
        )
        app.close()
        _kill(ground.url, folder, kills, random.Random(seed))
        _drain(ground.url, folder)
        done = _collected(ground, folder, jobs)
        about = ground.facts()["store"]
    finally:
        ground.close()
    lines = read_lines(folder / "records")
    count = {event: sum(line.event == event for line in lines) for event in ("start", "end")}
    facts = {"jobs": len(jobs), "attempts": count["start"], "rows": len(done.rows)}
    facts["entries outside"] = len(done.outside)
    facts["steps run"] = sum(what == "ran" for what, *_ in done.steps)
    interrupted = count["start"] - count["end"]
    seconds = round(time.monotonic() - began, 1)
    return Found(store, about, kills, seed, seconds, interrupted, judge(done), facts)


def _kill(url: str, folder: Path, kills: int, chance: random.Random) -> None:
    forks = multiprocessing.get_context("fork")
    for _ in range(kills):
        heard, told = os.pipe()
        worker = forks.Process(target=_work, args=(url, folder, told), kwargs={"burst": False})
        worker.start()
        os.close(told)
        os.read(heard, 1)  # its first handler has begun, or it is dead
        time.sleep(chance.random() * _LIFE_S)
        os.kill(worker.pid or 0, signal.SIGKILL)
        worker.join()
        os.close(heard)
        worker.close()


def _drain(url: str, folder: Path) -> None:
    """Let what is left finish: rescued jobs wait a little longer each time."""
    until = time.monotonic() + _DRAIN_S
    forks = multiprocessing.get_context("fork")
    app = create_app(url, folder)
    while time.monotonic() < until:
        worker = forks.Process(target=_work, args=(url, folder, None), kwargs={"burst": True})
        worker.start()
        worker.join()
        if all(record.status.is_final for record in all_jobs(app).values()):
            break
    app.close()


def _collected(ground: Ground, folder: Path, jobs: frozenset[str]) -> Done:
    app = create_app(ground.url, folder)
    records = all_jobs(app)
    app.close()
    with closing(sqlite3.connect(folder / "outside.db")) as outside:
        entries = [job for (job,) in outside.execute("select job from entries")]
    steps = [
        (line.event, line.job_id, *line.note.split(" "))
        for line in read_lines(folder / "records")
        if line.event in ("ran", "kept")
    ]
    transactional = ground.name != "redis"
    return Done(
        jobs=jobs,
        completed=frozenset(
            job for job, record in records.items() if record.status is JobStatus.COMPLETED
        ),
        transactional=transactional,
        rows=[job for (job,) in _asked(ground, "select job from paid")] if transactional else [],
        outside=entries,
        steps=[(what, job, name, value) for what, job, name, value in steps],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run each store asked for, and write the report."""
    return kill_run("effects", STORES, run, _told, page, kills=200, arguments=arguments)


def _told(found: Found) -> str:
    return f"{found.kills} kills in {found.seconds} s, {found.interrupted} cut off"


def page(found: Sequence[Found]) -> str:
    """The report as Markdown."""
    head = f"| | {' | '.join(one.store for one in found)} |"
    rows = [head, f"| --- |{' ---: |' * len(found)}"]

    def row(name: str, values: Sequence[object]) -> None:
        rows.append(f"| {name} | {' | '.join(map(str, values))} |")

    row("seconds", [one.seconds for one in found])
    row("kills", [one.kills for one in found])
    row("attempts that were cut off", [one.interrupted for one in found])
    for fact in found[0].facts:
        row(fact, [one.facts[fact] for one in found])
    for rule in found[0].verdict.counts:
        row(f"**{rule}**, must be 0", [_said(one, rule) for one in found])
    where = [f"- {one.store}: {one.about}" for one in found]
    machine = [f"- {name}: {value}" for name, value in report.machine().items()]
    plan = f"--kills {found[0].kills} --seed {found[0].seed}"
    how = (
        f"`python -m faults.effects {plan}`: SIGKILL at random instants of handlers with two "
        "steps, an effect outside under a key, and, where the store has them, a transaction with a "
        "row. "
        "What each rule means is said in `faults/checking/effects.py`."
    )
    parts = (
        "# Effects of handlers whose workers are killed",
        how,
        "\n".join([*where, *machine]),
        "\n".join(rows),
    )
    return "\n\n".join(parts) + "\n"


def _said(found: Found, rule: str) -> object:
    unjudged = rule in found.verdict.unjudged
    return "nothing to judge" if unjudged else found.verdict.counts[rule]


if __name__ == "__main__":
    sys.exit(main())
