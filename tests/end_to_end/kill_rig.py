# SPDX-License-Identifier: MIT
"""Kill workers with SIGKILL, again and again, and see whether anything was lost.

    python -m tests.end_to_end.kill_rig --kills 200 --jobs 5000 --lease 2 --store postgres

Two worker processes run a stream of short jobs. Each kill hits one of them while it works, and
another is started in its place. In the end a burst worker drains what is left, and `checker`
holds what the handlers wrote down against what the store says. Exit code 1 if it finds anything.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from packhorse import Packhorse
from packhorse.job import JobRecord, JobStatus
from packhorse.stores.requests import JobFilter
from packhorse.testing.servers.postgres import PostgresServer
from packhorse.testing.servers.redis import RedisServer
from tests.end_to_end.checker import Evidence, Run, Standing, Verdict, judge, overlaps, runs_of
from tests.end_to_end.support import PAGE, World, all_jobs, ended, until

WORKERS: Final = 2
CONCURRENCY: Final = 4
#: The shortest and the longest a job takes, in seconds.
JOB_S: Final = (0.005, 0.06)
#: How long after a worker's first job it is killed, at most.
KILL_WITHIN_S: Final = 0.3
#: How long a worker may take to begin its first job before it is killed all the same.
FIRST_JOB_S: Final = 20.0
#: How long the burst worker may take for what is left, per job.
DRAIN_S_PER_JOB: Final = 0.5
DRAIN_S_MIN: Final = 60.0
UNFINISHED: Final = tuple(
    status
    for status in JobStatus
    if status not in (JobStatus.COMPLETED, JobStatus.CANCELLED, JobStatus.DEAD)
)


class Plan(msgspec.Struct, frozen=True):
    """What to do."""

    kills: int
    jobs: int
    lease_s: float
    seed: int = 1


class Report(msgspec.Struct, frozen=True):
    """What came of it."""

    plan: Plan
    seconds: float
    verdict: Verdict
    facts: dict[str, Any]


class Rig:
    """One run of a plan in a world."""

    def __init__(self, world: World, plan: Plan, app: Packhorse) -> None:
        self.world = world
        self.plan = plan
        self.app = app
        self.chance = random.Random(plan.seed)
        self.submitted: list[str] = []
        self.between: list[Standing] = []
        self.died_us: dict[int, int] = {}
        self.workers: list[subprocess.Popen[str]] = []

    def run(self) -> Report:
        """Submit, kill, drain, judge."""
        began = time.monotonic()
        self.workers = [self._start() for _ in range(WORKERS)]
        for number in range(self.plan.kills):
            self._submit(until_count=self.plan.jobs * (number + 1) // self.plan.kills)
            self._kill_one()
            self._look()
        self._drain()
        return self._report(time.monotonic() - began)

    def _start(self, *options: str) -> subprocess.Popen[str]:
        lease = f"{self.plan.lease_s}s"
        return self.world.worker(
            *("--lease", lease, "--concurrency", str(CONCURRENCY), "--log-level", "error", *options)
        )

    def _submit(self, *, until_count: int) -> None:
        tasks, chance = self.app.tasks, self.chance
        names = chance.choices(("nap", "doze", "block_loop"), (14, 5, 1), k=until_count)
        calls = [tasks[name].call(chance.uniform(*JOB_S)) for name in names[len(self.submitted) :]]
        self.submitted += [job.id for job in self.app.enqueue_many(calls)]

    def _kill_one(self) -> None:
        """Kill a worker that has begun to work, at some moment nobody chose."""
        place = self.chance.randrange(WORKERS)
        victim = self.workers[place]
        records = self.world.records / f"{victim.pid}.jsonl"
        with contextlib.suppress(AssertionError):  # what waits may not be due yet
            until("a first job", lambda: records.exists() or self._idle(victim), FIRST_JOB_S)
        time.sleep(self.chance.uniform(0, KILL_WITHIN_S))
        victim.kill()
        ended(victim)
        self.died_us[victim.pid] = time.time_ns() // 1000
        self.workers[place] = self._start()

    def _idle(self, victim: subprocess.Popen[str]) -> bool:
        """Whether the worker lives and has nothing to do: then there is nothing to wait for."""
        known = {worker.pid for worker in self.app.insights.workers()}
        return victim.pid in known and self.app.depth("default") == 0

    def _look(self) -> None:
        """Note where unfinished jobs stand, so that a counter that falls is seen."""
        chosen = JobFilter(statuses=UNFINISHED)
        page = self.app.store.run(self.app.store.inspection.search(chosen, limit=PAGE))
        self.between += [_standing(record) for record in page.jobs]

    def _drain(self) -> None:
        """Let the living finish what they hold, and one more worker do the rest."""
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        codes = {ended(worker) for worker in self.workers}
        # The youngest may have been told before it had begun to listen.
        assert codes <= {0, -signal.SIGTERM}, codes
        last = self._start("--burst")
        assert ended(last, max(DRAIN_S_MIN, self.plan.jobs * DRAIN_S_PER_JOB)) == 0

    def _report(self, seconds: float) -> Report:
        lines = self.world.lines()
        runs = runs_of(lines)
        evidence = Evidence(
            submitted=frozenset(self.submitted),
            runs=runs,
            accepted=[line.job_id for line in lines if line.event == "completed"],
            at_last={job_id: self._at_last(job_id) for job_id in all_jobs(self.app)},
            between=self.between,
        )
        stale = sum(line.event == "stale" for line in lines)
        facts = {"stale writes refused": stale, **self._facts(runs, evidence)}
        return Report(self.plan, round(seconds, 1), judge(evidence), facts)

    def _at_last(self, job_id: str) -> Standing:
        record = self.app.store.run(self.app.store.inspection.job(job_id))
        assert record is not None
        return _standing(record)

    def _facts(self, runs: Sequence[Run], evidence: Evidence) -> dict[str, Any]:
        crashed = [one for one in evidence.at_last.values() if one.counters.crashes]
        waits = self._waits_s(runs)
        return {
            "jobs submitted": len(evidence.submitted),
            "runs": len(runs),
            "runs cut off": sum(run.ended_us is None for run in runs),
            "jobs lost with a worker": len(crashed),
            "most crashes of one job": max((one.counters.crashes for one in crashed), default=0),
            "lone crashes": sum(one.counters.lone_crashes for one in crashed),
            "most of them of one job": max(
                (one.counters.lone_crashes for one in crashed), default=0
            ),
            "overlapping runs": overlaps(runs, self.died_us),
            "median s from kill to next run": round(statistics.median(waits or [0.0]), 2),
            "longest s from kill to next run": round(max(waits, default=0.0), 2),
        }

    def _waits_s(self, runs: Sequence[Run]) -> list[float]:
        """For each run cut off by a kill, how long its job waited for the next one."""
        waits = []
        for run in runs:
            if run.ended_us is None and run.pid in self.died_us:
                later = [one.started_us for one in runs if _follows(one, run)]
                waits += [(min(later) - self.died_us[run.pid]) / 1e6] if later else []
        return waits


def _follows(one: Run, run: Run) -> bool:
    return one.job_id == run.job_id and one.fence > run.fence


def _standing(record: JobRecord) -> Standing:
    result = None if record.result is None else msgspec.json.decode(record.result)
    return Standing(
        job_id=record.id,
        status=record.status,
        fence=record.fence,
        counters=record.counters,
        finished_us=record.finished_us,
        result_fence=result["fence"] if isinstance(result, dict) else None,
    )


def run_rig(folder: Path, plan: Plan, store: str = "sqlite") -> Report:
    """Run a plan in a folder on a store of its own; no process outlives it."""
    with serving(store, folder) as url:
        world = World(folder, url)
        try:
            with world.app() as app:
                return Rig(world, plan, app).run()
        finally:
            world.end()


@contextlib.contextmanager
def serving(store: str, folder: Path) -> Iterator[str | None]:
    """A server for the time of a run, that keeps every commit; None: a file will do."""
    match store:
        case "postgres":
            postgres = PostgresServer(careful=True)
            try:
                yield postgres.url()
            finally:
                postgres.remove()
        case "redis":
            redis = RedisServer(folder / "redis", "--appendonly", "yes", "--appendfsync", "always")
            try:
                yield redis.url
            finally:
                redis.stop()
        case _:
            yield None


def table(report: Report) -> str:
    """The report for people."""
    plan = report.plan
    rows = [*report.facts.items(), *report.verdict.counts.items()]
    width = max(len(name) for name, _ in rows)
    lines = [f"{plan.kills} kills, {plan.jobs} jobs, lease {plan.lease_s:g} s: {report.seconds} s"]
    lines += [f"  {name:<{width}}  {number:>8}" for name, number in report.facts.items()]
    lines += ["every one of these must be 0"]
    lines += [f"  {name:<{width}}  {number:>8}" for name, number in report.verdict.counts.items()]
    lines += [f"    {text}" for found in report.verdict.findings.values() for text in found[:5]]
    return "\n".join([*lines, "clean" if report.verdict.clean else "NOT CLEAN"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print the table and the JSON document; 1 if anything was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--lease", type=float, default=2.0, help="in seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", choices=["sqlite", "postgres", "redis"], default="sqlite")
    options = parser.parse_args(arguments)
    plan = Plan(options.kills, options.jobs, options.lease, options.seed)
    with tempfile.TemporaryDirectory(prefix="packhorse-kills-") as folder:
        report = run_rig(Path(folder), plan, options.store)
    sys.stdout.write(f"{table(report)}\n{msgspec.json.encode(report).decode()}\n")
    return 0 if report.verdict.clean else 1


if __name__ == "__main__":
    sys.exit(main())
