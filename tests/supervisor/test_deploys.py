# SPDX-License-Identifier: MIT
"""Workers are replaced while jobs run: nothing is lost, nothing is done for nothing twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from packhorse import JobHandle, JobStatus
from tests.supervisor.yard import PATIENCE_S, SOURCE, Yard, until

SCRIPT = """
import os
from packhorse import Packhorse

app = Packhorse("sqlite:///script.db")

@app.task(executor="process")
def where() -> int:
    return os.getpid()

{guard}
    job = where.enqueue()
    report = app.run(burst=True, process_slots=1)
    print(report.succeeded, report.problem)
    print(job.result(timeout=0.1) != os.getpid())
"""


@pytest.mark.req("S4-9", "S4-11", "S4-12")
def test_workers_replaced_one_after_the_other_under_load_lose_and_discard_nothing(
    yard: Yard,
) -> None:
    work = yard.app.tasks["briefly"]
    jobs: list[JobHandle[int]] = []
    options = ("-c", "10", "--log-level", "error", "--code-version")
    worker = yard.worker(*options, "0")

    def works(number: int) -> bool:
        jobs.extend(work.enqueue_many([{"seconds": 0.03}] * 3))  # work comes in all the time
        return any(one.live and one.code == str(number) for one in yard.app.insights.workers())

    for number in range(1, 4):
        before, worker = worker, yard.worker(*options, str(number))
        until("the next release", lambda: works(number))  # noqa: B023 - called here
        before.send_signal(signal.SIGTERM)
        jobs.extend(work.enqueue_many([{"seconds": 0.03}] * 20))
        assert before.wait(PATIENCE_S) == 0

    results = [job.result(timeout=PATIENCE_S) for job in jobs]
    assert yard.stop(worker) == 0
    assert len(set(results)) >= 3  # several of them worked
    for job in jobs:
        info = job.info()
        assert (info.status, info.attempts) == (JobStatus.COMPLETED, 1)
        assert (info.failures, info.crashes) == (0, 0)


@pytest.mark.req("S1-29")
def test_a_job_of_the_next_release_is_set_aside_until_its_worker_comes(yard: Yard) -> None:
    source = (yard.folder / "jobs.py").read_text(encoding="utf-8")
    added = "\n@app.task\ndef brand_new() -> str:\n    return 'new'\n"
    (yard.folder / "next_jobs.py").write_text(source + added, encoding="utf-8")
    old = yard.worker("--code-version", "1")
    until("the old worker", lambda: any(one.live for one in yard.app.insights.workers()))
    job = _brand_new(yard)
    until("it to be set aside", lambda: yard.record(job).parked_us is not None)

    new = yard.start("worker", "next_jobs:app", "--code-version", "2", "--log-format", "json")

    assert job.result(timeout=PATIENCE_S) == "new"
    live = [one for one in yard.app.insights.workers() if one.live]
    assert {one.code for one in live} == {"1", "2"}
    assert (job.info().attempts, job.info().failures) == (1, 0)
    assert [yard.stop(old), yard.stop(new)] == [0, 0]


def _brand_new(yard: Yard) -> JobHandle[str]:
    """A job of a task that only the next release declares."""

    @yard.app.task
    def brand_new() -> str:
        raise NotImplementedError

    return brand_new.enqueue()


@pytest.mark.parametrize(
    ("guard", "code", "said"),
    [
        ("if __name__ == '__main__':", 0, "1 None\nTrue"),
        ("if True:", 1, "0 ConfigError: a worker was started by a module that"),
    ],
    ids=["guarded", "bare"],
)
def test_a_script_that_runs_its_own_worker_can_use_processes_if_it_guards_its_start(
    yard: Yard, guard: str, code: int, said: str
) -> None:
    (yard.folder / "script.py").write_text(SCRIPT.format(guard=guard), encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=yard.folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )

    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done
