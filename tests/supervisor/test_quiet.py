# SPDX-License-Identifier: MIT
"""Quiet workers: told by command or by signal, seen from outside, and quiet in their successors."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from typing import Any

from packhorse import JobStatus, Packhorse
from packhorse.events import Event
from tests.supervisor.yard import PATIENCE_S, Yard, asked, probe_address, soon, status, until

PROBED = ("--http", "127.0.0.1:0")


def commanded(yard: Yard, *arguments: str) -> None:
    process = yard.start("workers", *arguments, "--url", "sqlite:///jobs.db")
    assert process.wait(PATIENCE_S) == 0, yard.output(process)


def told(yard: Yard, process: subprocess.Popen[str], event: str) -> set[str]:
    """The workers of which a log says this."""
    lines = [line for line in yard.output(process).splitlines() if line.startswith("{")]
    found: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return {each["worker"] for each in found if each.get("event") == event}


def live(yard: Yard, count: int) -> dict[int, str]:
    """The processes of the live workers, once there are so many, and what these are called."""

    def look() -> dict[int, str] | None:
        found = {one.pid: one.id for one in yard.app.insights.workers() if one.live}
        return found if len(found) == count else None

    return until(f"{count} workers", look)


def quiet_processes(address: str) -> set[int]:
    return {each["pid"] for each in status(address)["processes"] if each["quiet"]}


def quiet_in_store(yard: Yard) -> set[str]:
    return {one.id for one in yard.app.insights.workers() if one.live and one.quiet}


def test_workers_quieted_by_command_are_seen_to_be_and_so_are_their_successors(yard: Yard) -> None:
    parent = yard.worker("-p", "2", *PROBED)
    address = probe_address(yard, parent)
    workers = live(yard, 2)
    until("the workers to be ready", lambda: asked(f"{address}/readyz")[0] == 200)

    commanded(yard, "quiet", "--all")

    until("quiet", lambda: asked(f"{address}/readyz") == (503, "quiet\n"))
    assert status(address)["quiet"] is True
    until("both to be seen", lambda: quiet_processes(address) == set(workers))
    until("the store to know", lambda: quiet_in_store(yard) == set(workers.values()))
    until("the log", lambda: told(yard, parent, "worker.quiet") == set(workers.values()))

    waiting = yard.app.tasks["add"].enqueue(1)
    killed = min(workers)
    os.kill(killed, signal.SIGKILL)
    (successor,) = until(
        "a successor", lambda: {one for one in live(yard, 2) if one not in workers}
    )
    until("its log", lambda: live(yard, 2)[successor] in told(yard, parent, "worker.quiet"))
    until("it to be seen", lambda: quiet_processes(address) == {successor, max(workers)})
    assert waiting.status() is JobStatus.QUEUED
    until("the reason", lambda: waiting.explain().codes == ("workers_quiet",))
    assert asked(f"{address}/readyz") == (503, "quiet\n")

    commanded(yard, "resume", "--all")

    assert waiting.result(timeout=PATIENCE_S) == 1
    until("ready again", lambda: asked(f"{address}/readyz")[0] == 200)
    until("all to go on", lambda: quiet_processes(address) == set())
    until("the store to know", lambda: quiet_in_store(yard) == set())
    assert status(address)["quiet"] is False
    until("the log", lambda: told(yard, parent, "worker.resumed") == set(live(yard, 2).values()))
    assert yard.stop(parent) == 0


def test_one_quiet_worker_of_two_leaves_the_other_to_its_work(yard: Yard) -> None:
    parent = yard.worker("-p", "2", *PROBED)
    address = probe_address(yard, parent)
    (pid, worker), (other, _) = live(yard, 2).items()

    commanded(yard, "quiet", worker)

    until("quiet", lambda: quiet_processes(address) == {pid})
    assert status(address)["quiet"] is False
    until("the other to be ready", lambda: asked(f"{address}/readyz")[0] == 200)
    assert yard.app.tasks["briefly"].enqueue(0.0).result(timeout=PATIENCE_S) == other

    parent.send_signal(signal.SIGUSR1)  # all of them
    until("quiet", lambda: asked(f"{address}/readyz") == (503, "quiet\n"))
    parent.send_signal(signal.SIGUSR2)
    until("ready again", lambda: asked(f"{address}/readyz")[0] == 200)
    until("all to go on", lambda: quiet_processes(address) == set())
    assert yard.stop(parent) == 0


async def test_a_worker_without_a_supervisor_says_when_it_is_quiet_and_when_it_goes_on() -> None:
    app = Packhorse("memory://")
    said: list[str] = []

    @app.on("worker.*")
    def note(event: Event) -> None:
        said.append(event.name)

    running = asyncio.create_task(app.arun())
    await soon("it to start", lambda: said == ["worker.started"])
    for number, name in (
        (signal.SIGUSR1, "worker.quiet"),
        (signal.SIGUSR1, "worker.quiet"),  # told again, it has nothing new to say
        (signal.SIGUSR2, "worker.resumed"),
    ):
        os.kill(os.getpid(), number)
        await soon(name, lambda: said[-1] == name)  # noqa: B023 - called here
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(running, PATIENCE_S)

    assert said[1:3] == ["worker.quiet", "worker.resumed"]
    assert said[3:] == ["worker.stopping", "worker.stopped"]
