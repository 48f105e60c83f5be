# SPDX-License-Identifier: MIT
"""Limits under contention: four workers, three producers, and somebody who kills at random.

    python -m tests.end_to_end.contested --seconds 60

Every kind of limit there is holds over all workers while some are killed with SIGKILL, and others
stopped for longer than their lease. When the time is over, the living drain what is left, and two
checkers hold what handlers and producers wrote down against what the store says: `checker` whether
anything was lost, `contested_checker` whether a limit was broken. Exit code 1 if they find any.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from packhorse import Packhorse
from packhorse.job import JobRecord, JobStatus
from packhorse.stores.requests import JobFilter
from tests.end_to_end import checker
from tests.end_to_end.checker import Evidence, Run, Standing, Verdict, overlaps, runs_of
from tests.end_to_end.contested_app import CLOCK, LIMITS, create_app
from tests.end_to_end.contested_checker import (
    Asked,
    Contest,
    Facts,
    Span,
    begun_in_time,
    claimed_at_once,
    granted_in_a_window,
    judge,
    stale,
)
from tests.end_to_end.contested_producer import ENOUGH, Answer
from tests.end_to_end.recording import Line
from tests.end_to_end.support import PATIENCE_S, World, all_jobs, ended, until

APP: Final = "tests.end_to_end.contested_app:create_app"
WORKERS: Final = 4
PRODUCERS: Final = 3
CONCURRENCY: Final = 8
LEASE_S: Final = 2.0
#: Between two disturbances, on average.
PEACE_S: Final = 0.8
#: How many of them are stops, beyond the lease, instead of kills.
STOPS: Final = 0.2
STOP_S: Final = 2 * LEASE_S
#: It goes on until there was one kill in so many seconds asked for, however slow the machine is.
KILL_EACH_S: Final = 4.0
#: And is given up when that takes so much longer than it should.
PATIENCE: Final = 6
#: How long what is left may take: rescues wait longer each time.
DRAIN_S: Final = 60.0
#: Characters of a worker's output that are shown when it does not work.
WORDS_MAX: Final = 1_000
#: Jobs that are told of when it takes longer.
SHOWN_MAX: Final = 20
LOOK_S: Final = 0.02
UNFINISHED: Final = tuple(
    status
    for status in JobStatus
    if status not in (JobStatus.COMPLETED, JobStatus.CANCELLED, JobStatus.DEAD)
)


class Plan(msgspec.Struct, frozen=True):
    """What to do."""

    seconds: float
    seed: int = 1


class Report(msgspec.Struct, frozen=True):
    """What came of it."""

    plan: Plan
    seconds: float
    verdict: Verdict
    facts: dict[str, Any]


class Contestants:
    """The worker processes: one is killed or stopped now and then, and replaced or let go on.

    Only those that have run something are: a process that dies while it starts shows nothing.
    """

    def __init__(self, world: World, chance: random.Random) -> None:
        self.died_us: dict[int, int] = {}
        self.kills = self.stops = 0
        self.cut_off = 0  #: handlers that ran when their worker was killed
        self._world = world
        self._chance = chance
        self._stopped: dict[int, float] = {}  # place -> when it goes on
        self._workers = [self._start() for _ in range(WORKERS)]
        self._next = time.monotonic() + PEACE_S

    def disturb(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        for place in [place for place, until_s in self._stopped.items() if until_s <= now]:
            self._go_on(place)
        if now >= self._next:
            self._next = now + self._chance.expovariate(1 / PEACE_S)
            place = self._chance.randrange(WORKERS)
            if place not in self._stopped and self._records(place).exists():
                self._kill_or_stop(place)

    def leave_alone(self) -> None:
        """Let those that are stopped go on."""
        for place in list(self._stopped):
            self._go_on(place)

    def end(self, app: Packhorse) -> set[int]:
        """Ask all of them to leave, once they listen; their exit codes."""
        pids = {worker.pid for worker in self._workers}
        until("every worker to live", lambda: pids <= {one.pid for one in app.insights.workers()})
        for worker in self._workers:
            worker.send_signal(signal.SIGTERM)
        return {ended(worker) for worker in self._workers}

    def _kill_or_stop(self, place: int) -> None:
        if self._chance.random() < STOPS:
            self._workers[place].send_signal(signal.SIGSTOP)
            self._stopped[place] = time.monotonic() + STOP_S
            self.stops += 1
        else:
            victim = self._workers[place]
            victim.kill()
            ended(victim)
            self.died_us[victim.pid] = CLOCK.now_us()
            self.cut_off += self._left_running(victim.pid)
            self._workers[place] = self._start()
            self.kills += 1

    def last_words(self) -> str:
        """What the living have complained of."""
        return "\n".join(self._world.output(worker)[-WORDS_MAX:] for worker in self._workers)

    def _left_running(self, pid: int) -> int:
        events = Counter(line.event for line in self._world.lines() if line.pid == pid)
        return events["start"] - events["end"]

    def _records(self, place: int) -> Path:
        return self._world.records / f"{self._workers[place].pid}.jsonl"

    def _go_on(self, place: int) -> None:
        del self._stopped[place]
        self._workers[place].send_signal(signal.SIGCONT)

    def _start(self) -> subprocess.Popen[str]:
        return self._world.worker(
            *("--lease", f"{LEASE_S}s", "--concurrency", str(CONCURRENCY)),
            *("--log-level", "error", "--no-banner"),
            app=APP,
        )


def run_contest(folder: Path, plan: Plan) -> Report:
    """Run a plan in a folder; no process outlives it."""
    world = World(folder)
    app = create_app(world.url)
    try:
        return _run(world, app, plan)
    finally:
        app.close()
        world.end()


def _run(world: World, app: Packhorse, plan: Plan) -> Report:
    began = time.monotonic()
    app.store.migrate()
    workers = Contestants(world, random.Random(plan.seed))
    producers = [
        world.start("-m", "tests.end_to_end.contested_producer", str(plan.seed + number))
        for number in range(PRODUCERS)
    ]
    _contend(workers, producers, plan)
    workers.leave_alone()  # one that is stopped may hold the store's lock
    (world.records / ENOUGH).touch()
    codes = {ended(each) for each in producers}
    assert codes == {0}, [world.output(each) for each in producers]
    _drain(app)
    codes = workers.end(app)
    assert codes == {0}, codes
    return _report(world, app, plan, workers, time.monotonic() - began)


def _contend(workers: Contestants, producers: Sequence[subprocess.Popen[str]], plan: Plan) -> None:
    """Disturb until the time is over and something was shown."""
    began = time.monotonic()
    least = plan.seconds // KILL_EACH_S
    given_up = began + PATIENCE * plan.seconds + PATIENCE_S
    while all(each.poll() is None for each in producers):
        workers.disturb()
        time.sleep(LOOK_S)
        now = time.monotonic()
        if now >= began + plan.seconds and workers.kills >= least and workers.cut_off:
            return
        assert now < given_up, (
            f"{workers.kills} kills, {workers.cut_off} handlers cut off\n{workers.last_words()}"
        )


def _drain(app: Packhorse) -> None:
    """Wait until everything is finished; if that takes too long, say why."""
    try:
        until("everything to be finished", lambda: not _unfinished(app, limit=1), DRAIN_S)
    except AssertionError as error:
        left = _unfinished(app, limit=SHOWN_MAX)
        reasons = [f"{record}\n{app.explain(record.id)}" for record in left]
        raise AssertionError("\n".join([str(error), *reasons])) from None


def _unfinished(app: Packhorse, *, limit: int) -> tuple[JobRecord, ...]:
    plan = app.store.inspection.search(JobFilter(statuses=UNFINISHED), limit=limit)
    return app.store.run(plan).jobs


def _report(
    world: World, app: Packhorse, plan: Plan, workers: Contestants, seconds: float
) -> Report:
    lines = world.lines()
    runs = runs_of(lines)
    records = _records(app)
    contest = Contest(
        limits=LIMITS,
        jobs=[_facts(app, record) for record in records],
        runs=runs,
        asked=_asked(lines),
        pushed_back=frozenset(
            (line.job_id, line.attempt) for line in lines if line.event == "limited"
        ),
    )
    evidence = Evidence(
        submitted=frozenset(line.job_id for line in lines if line.event == "submitted"),
        runs=begun_in_time(contest),
        accepted=[line.job_id for line in lines if line.event == "completed"],
        at_last={record.id: _standing(record) for record in records},
    )
    found = {**checker.judge(evidence).findings, **judge(contest).findings}
    facts = {
        "kills": workers.kills,
        "stops": workers.stops,
        **_facts_of(contest, runs, lines),
        "overlapping runs": overlaps(runs, workers.died_us),
    }
    return Report(plan, round(seconds, 1), Verdict(found), facts)


def _facts_of(contest: Contest, runs: Sequence[Run], lines: Sequence[Line]) -> dict[str, Any]:
    events = Counter(line.event for line in lines)
    return {
        "jobs": len(contest.jobs),
        "deduplicated": sum(asked.deduplicated for asked in contest.asked),
        "refused as full": events["full"],
        "runs": len(runs),
        "runs cut off": sum(run.ended_us is None for run in runs),
        "met a limit elsewhere": events["limited"],
        "begun too late": len(runs) - len(begun_in_time(contest)),
        "stale attempts": stale(contest),
        "stale writes refused": events["stale"],
        **{f"jobs of {task}": number for task, number in _by_task(contest).items()},
        **_uses(contest),
    }


def _by_task(contest: Contest) -> dict[str, int]:
    return dict(sorted(Counter(job.task for job in contest.jobs).items()))


def _uses(contest: Contest) -> dict[str, str]:
    """The most of each limit that was used, of how much there was."""
    uses = sorted((*claimed_at_once(contest), *granted_in_a_window(contest)), key=lambda u: u.gate)
    return {use.gate: f"{use.most} of {use.limit}" for use in uses}


def _records(app: Packhorse) -> list[JobRecord]:
    """Every job in the order of admission, with its result."""
    ids = reversed(list(all_jobs(app)))  # the newest comes first
    found = (app.store.run(app.store.inspection.job(job_id)) for job_id in ids)
    return [record for record in found if record is not None]


def _facts(app: Packhorse, record: JobRecord) -> Facts:
    history = app.store.run(app.store.inspection.history(record.id))
    given_back = sum(line.status is JobStatus.QUEUED for line in history)
    return Facts(
        job_id=record.id,
        task=record.task,
        queue=record.queue,
        created_us=record.created_us,
        spans=[
            Span(
                *(line.attempt, line.started_us, line.finished_us),
                given_back=line.status is JobStatus.QUEUED,
                worker=line.worker,
            )
            for line in history
        ],
        finished_us=record.finished_us,
        status=record.status,
        tenant=record.tenant,
        ordering_key=record.ordering_key,
        concurrency_key=record.concurrency_key,
        rate_key=record.rate_key,
        weight=record.weight,
        hidden=record.counters.releases - given_back,
    )


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


def _asked(lines: Sequence[Line]) -> list[Asked]:
    found = []
    for line in lines:
        if line.event in ("submitted", "full"):
            answer = msgspec.json.decode(line.note, type=Answer)
            found.append(
                Asked(
                    task=answer.task,
                    asked_us=answer.asked_us,
                    answered_us=line.at_us,
                    job_id=line.job_id,
                    key=answer.key,
                    deduplicated=answer.deduplicated,
                    count=answer.count,
                )
            )
    return found


def table(report: Report) -> str:
    """The report for people."""
    rows = [*report.facts.items(), *report.verdict.counts.items()]
    width = max(len(name) for name, _ in rows)
    lines = [f"{report.plan.seconds:g} s of contention: {report.seconds} s in all"]
    lines += [f"  {name:<{width}}  {number:>8}" for name, number in report.facts.items()]
    lines += ["every one of these must be 0"]
    lines += [f"  {name:<{width}}  {number:>8}" for name, number in report.verdict.counts.items()]
    lines += [f"    {text}" for found in report.verdict.findings.values() for text in found[:5]]
    return "\n".join([*lines, "clean" if report.verdict.clean else "NOT CLEAN"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print the table and the JSON document; 1 if anything was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    plan = Plan(options.seconds, options.seed)
    with tempfile.TemporaryDirectory(prefix="packhorse-contested-") as folder:
        report = run_contest(Path(folder), plan)
    sys.stdout.write(f"{table(report)}\n{msgspec.json.encode(report).decode()}\n")
    return 0 if report.verdict.clean else 1


if __name__ == "__main__":
    sys.exit(main())
