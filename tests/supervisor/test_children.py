# SPDX-License-Identifier: MIT
"""`packhorse worker`: a parent without user code, and processes it keeps, replaces and ends."""

from __future__ import annotations

import os
import signal

import pytest

from packhorse import DeadReason, JobStatus
from tests.supervisor.yard import PATIENCE_S, SOURCE, Yard, lives, until

#: Short enough to wait for twice, long enough for a machine that has much else to do.
LEASE_S = 3


def test_the_parent_imports_no_user_code(yard: Yard) -> None:
    job = yard.app.tasks["linger"].enqueue()
    parent = yard.worker()

    child = yard.begun(job)

    importers = {int(path.name.partition("-")[2]) for path in yard.folder.glob("imported-*")}
    assert importers == {child}
    assert parent.pid != child
    yard.go()
    assert yard.stop(parent) == 0
    assert job.info().status is JobStatus.COMPLETED


@pytest.mark.req("S1-43")
def test_a_handler_that_holds_the_interpreter_for_two_leases_keeps_its_job(yard: Yard) -> None:
    job = yard.app.tasks["hold"].enqueue(2 * LEASE_S + 0.5)
    parent = yard.worker("--lease", f"{LEASE_S}s")
    child = yard.begun(job)
    rival = yard.worker("--lease", f"{LEASE_S}s")  # would rescue what is lost

    result = job.result(timeout=PATIENCE_S)

    assert result == {"pid": child, "lost": False}
    info = job.info()
    assert (info.attempts, info.crashes, info.releases) == (1, 0, 0)
    assert [yard.stop(parent), yard.stop(rival)] == [0, 0]


@pytest.mark.req("S4-26", "S3-26")
def test_a_job_that_takes_its_process_down_pays_at_once_and_work_goes_on(yard: Yard) -> None:
    parent = yard.worker()  # a lease of 30 s, which is not waited for
    job = yard.app.tasks["take_down"].enqueue("exit")

    dead = yard.finished(job)
    later = yard.app.tasks["add"].enqueue(40, 2)

    assert later.result(timeout=PATIENCE_S) == 42
    assert (dead.dead_reason, dead.crashes, dead.failures) == (DeadReason.WORKER_CRASHED, 2, 0)
    assert "exit code 7" in dead.error.message
    assert "MiB at most" in dead.error.message
    assert "last log line: about to exit" in dead.error.message
    assert [line.error.code for line in job.history() if line.error] == ["WORKER_LOST"] * 2
    assert yard.stop(parent) == 0
    points = yard.app.insights.history("1h").points  # the parent wrote what processes could not
    counted = [(point.succeeded, point.retried, point.dead) for point in points]
    assert [sum(each) for each in zip(*counted, strict=True)] == [1, 1, 1]


@pytest.mark.req("S4-24", "S4-26")
def test_whatever_way_a_handler_kills_its_process_the_next_one_works_on(yard: Yard) -> None:
    parent = yard.worker()
    ways = {"segfault": "signal SIGSEGV", "overflow": "signal SIGSEGV", "memory": "signal SIGKILL"}

    for how, evidence in ways.items():
        dead = yard.finished(yard.app.tasks["take_down_once"].enqueue(how))
        assert (dead.dead_reason, dead.error.code) == (DeadReason.WORKER_CRASHED, "WORKER_LOST")
        assert evidence in dead.error.message, how
        if how == "segfault":  # a thread that overflows its stack has none left to say where
            assert "in die" in (dead.error.stack or "")
        assert yard.app.tasks["add"].enqueue(40, 2).result(timeout=PATIENCE_S) == 42
    assert yard.stop(parent) == 0


def test_processes_die_with_their_parent(yard: Yard) -> None:
    job = yard.app.tasks["linger"].enqueue()
    parent = yard.worker("-p", "2")
    child = yard.begun(job)
    until("two workers", lambda: sum(one.live for one in yard.app.insights.workers()) == 2)
    pids = {worker.pid for worker in yard.app.insights.workers()}

    parent.kill()
    parent.wait(PATIENCE_S)

    assert child in pids
    until("the processes to end", lambda: not any(lives(pid) for pid in pids))


def test_an_app_that_does_not_load_is_not_tried_again(yard: Yard) -> None:
    (yard.folder / "broken.py").write_text("raise RuntimeError('not today')", encoding="utf-8")

    process = yard.start("worker", "broken:app", "-p", "2")

    assert process.wait(PATIENCE_S) == 4
    assert "before it had begun" not in yard.output(process)
    assert "not today" in yard.output(process)


def test_quiet_stops_claiming_by_signal_and_goes_on_by_another(yard: Yard) -> None:
    running = yard.app.tasks["linger"].enqueue()
    parent = yard.worker()
    yard.begun(running)

    parent.send_signal(signal.SIGUSR1)
    until("quiet", lambda: "quiet: no more jobs are claimed" in yard.output(parent))
    until("the wish to be heard", lambda: _held_back(yard))
    waiting = yard.app.tasks["add"].enqueue(1)
    yard.go()
    assert running.result(timeout=PATIENCE_S)  # what runs goes on
    assert waiting.status() is JobStatus.QUEUED
    parent.send_signal(signal.SIGUSR2)

    assert waiting.result(timeout=PATIENCE_S) == 1
    assert yard.stop(parent) == 0


def _held_back(yard: Yard) -> bool:
    """Whether nothing is claimed any more: what is submitted stays where it is for a while."""
    probe = yard.app.tasks["add"].enqueue(1)
    try:
        until("it to be claimed", lambda: probe.status() is not JobStatus.QUEUED, within_s=0.3)
    except AssertionError:
        probe.cancel()
        return True
    return False


@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN])
def test_the_end_of_a_terminal_stops_a_worker_unless_it_is_to_outlive_it(
    yard: Yard, before: signal.Handlers
) -> None:
    heard = before is signal.SIG_DFL
    ours = signal.signal(signal.SIGHUP, before)  # what is started inherits it
    try:
        parent = yard.worker()
    finally:
        signal.signal(signal.SIGHUP, ours)
    job = yard.app.tasks["linger"].enqueue()
    yard.begun(job)

    parent.send_signal(signal.SIGHUP)

    if heard:
        until("the stop", lambda: "stopping (SIGHUP)" in yard.output(parent))
    yard.go()
    assert job.result(timeout=PATIENCE_S)
    if not heard:
        assert yard.app.tasks["add"].enqueue(1).result(timeout=PATIENCE_S) == 1
        parent.send_signal(signal.SIGTERM)
    assert parent.wait(PATIENCE_S) == 0
    assert (job.info().attempts, job.info().releases) == (1, 0)


@pytest.mark.req("S4-12", "S4-14")
def test_a_process_that_cannot_stop_is_killed_its_job_goes_back_and_that_is_exit_code_8(
    yard: Yard,
) -> None:
    job = yard.app.tasks["hold"].enqueue(600)
    parent = yard.worker()
    child = yard.begun(job)

    for heard in ("stopping", "giving running jobs back", "leaving at once"):
        parent.send_signal(signal.SIGTERM)
        until(heard, lambda: f"{heard} (SIGTERM)" in yard.output(parent))  # noqa: B023 - called here
    assert parent.wait(PATIENCE_S) == 8

    assert not lives(child)
    info = job.info()
    assert (info.status, info.crashes, info.releases) == (JobStatus.QUEUED, 0, 1)


def test_workers_are_quieted_and_resumed_by_command_and_show_the_version_of_their_code(
    yard: Yard,
) -> None:
    parent = yard.worker("--code-version", "2026-11-16")
    until("the worker", lambda: any(one.live for one in yard.app.insights.workers()))
    (worker,) = yard.app.insights.workers()

    quieted = yard.start("workers", "quiet", worker.id, "--url", "sqlite:///jobs.db")
    assert quieted.wait(PATIENCE_S) == 0, yard.output(quieted)
    until("the wish to be heard", lambda: _held_back(yard))
    waiting = yard.app.tasks["add"].enqueue(1)
    resumed = yard.start("workers", "resume", "--all", "--url", "sqlite:///jobs.db")

    assert resumed.wait(PATIENCE_S) == 0, yard.output(resumed)
    assert waiting.result(timeout=PATIENCE_S) == 1
    assert worker.code == "2026-11-16"
    assert yard.stop(parent) == 0


def test_changed_code_is_taken_up_by_new_processes_and_what_runs_finishes(yard: Yard) -> None:
    running = yard.app.tasks["linger"].enqueue()
    parent = yard.worker("--reload", "-c", "1")
    old = yard.begun(running)
    (before,) = yard.app.insights.workers()

    source = (yard.folder / "jobs.py").read_text(encoding="utf-8")
    # Of another length: Python takes a file of the same second and length as compiled already.
    changed = source.replace("return a + b", "return a * b  # changed")
    (yard.folder / "jobs.py").write_text(changed, encoding="utf-8")
    product = yard.app.tasks["add"].enqueue(6, 7)

    assert product.result(timeout=PATIENCE_S) == 42
    yard.go()
    assert running.result(timeout=PATIENCE_S) == old
    codes = {one.code for one in yard.app.insights.workers()} | {before.code}
    assert len(codes) == 2  # the fingerprint of the files tells them apart
    assert yard.stop(parent) == 0
    assert "jobs.py changed" in yard.output(parent)


def test_reload_without_the_extra_names_it(yard: Yard) -> None:
    hidden = yard.folder / "hidden"
    hidden.mkdir()
    # An import hook that finds no watchfiles, as in an environment that has none.
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: name != 'watchfiles' and find(name, *rest) or None\n",
        encoding="utf-8",
    )

    process = yard.worker("--reload", PYTHONPATH=f"{hidden}{os.pathsep}{SOURCE}")

    assert process.wait(PATIENCE_S) == 2
    assert "pip install 'packhorse[dev]'" in yard.output(process)
