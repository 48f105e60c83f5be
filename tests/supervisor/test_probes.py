# SPDX-License-Identifier: MIT
"""What a supervisor answers over HTTP."""

from __future__ import annotations

import os
import re
import signal

import pytest

from tests.supervisor.yard import PATIENCE_S, Yard, asked, probe_address, status, until

PROBED = ("--http", "127.0.0.1:0")


@pytest.mark.req("S4-20", "S3-35", "S3-43", "S3-36")
def test_probes_tell_what_was_done_what_waits_and_what_runs(yard: Yard) -> None:
    parent = yard.worker("-p", "2", *PROBED)
    address = probe_address(yard, parent)
    until("the worker to be ready", lambda: asked(f"{address}/readyz")[0] == 200)
    running = yard.app.tasks["linger"].enqueue()
    child = yard.begun(running)
    yard.app.tasks["add"].enqueue(1).result(timeout=PATIENCE_S)
    yard.app.tasks["add"].using(delay="1h").enqueue(1)

    lines = (
        "packhorse_success_count 1",
        "packhorse_failure_count 0",
        "packhorse_retry_count 0",
        "packhorse_running_jobs 1",
        "packhorse_ahead_jobs 0",
        "packhorse_unsettled_jobs 0",
        "packhorse_processes 2",
        'packhorse_queue_depth{queue="default"} 1',
    )

    def counted() -> str:
        """The metrics, once both processes have told theirs."""
        text = asked(f"{address}/metrics")[1]
        return text if all(f"{line}\n" in text for line in lines) else ""

    text = until("the count", counted)
    document = status(address)

    assert asked(f"{address}/livez") == (200, "ok\n")
    labels = {"queue", "task", "outcome", "le", "state", "version"}  # no id is one
    assert set(re.findall(r'(\w+)="', text)) == labels
    assert "\npackhorse_p95_duration_ms " in text
    (process,) = [each for each in document["processes"] if each["running"]]
    assert (process["pid"], process["running"][0]["jobId"]) == (child, running.id)
    assert process["version"]
    assert (process["ahead"], process["unsettled"], document["ready"]) == (0, 0, True)
    assert document["app"] == "jobs:app"
    assert asked(f"{address}/nothing")[0] == 404
    yard.go()
    assert yard.stop(parent) == 0


def test_readiness_ends_with_quiet_and_a_process_that_died_is_seen_to_be_replaced(
    yard: Yard,
) -> None:
    parent = yard.worker(*PROBED)
    address = probe_address(yard, parent)
    until("the worker to be ready", lambda: asked(f"{address}/readyz")[0] == 200)
    (before,) = status(address)["processes"]

    os.kill(before["pid"], signal.SIGKILL)
    (after,) = until(
        "another process",
        lambda: [
            each
            for each in status(address)["processes"]
            if each["worker"] and each["pid"] != before["pid"]
        ],
    )
    until("the worker to be ready", lambda: asked(f"{address}/readyz")[0] == 200)
    parent.send_signal(signal.SIGUSR1)

    until("quiet", lambda: asked(f"{address}/readyz") == (503, "quiet\n"))
    assert after["restarts"] == 1
    assert asked(f"{address}/livez")[0] == 200
    assert yard.stop(parent) == 0


def test_an_address_that_is_taken_is_said_plainly(yard: Yard) -> None:
    first = yard.worker(*PROBED)
    address = probe_address(yard, first).removeprefix("http://")

    second = yard.worker("--http", address)

    assert second.wait(PATIENCE_S) == 2
    assert "cannot be listened on" in yard.output(second)
    assert yard.stop(first) == 0


@pytest.mark.req("S0-31")
def test_what_the_parent_settles_for_a_dead_process_is_counted_too(yard: Yard) -> None:
    parent = yard.worker(*PROBED)
    address = probe_address(yard, parent)
    yard.finished(yard.app.tasks["take_down"].enqueue("exit"))  # twice, then it is given up
    yard.finished(yard.app.tasks["block"].enqueue())  # killed for it, beyond its time
    wanted = ("failure_count 3", "retry_count 1", "dead_count 2", "timeout_count 1")

    def counted() -> bool:
        text = asked(f"{address}/metrics")[1]
        return all(f"packhorse_{line}\n" in text for line in wanted)

    until("the counts", counted)
    assert yard.stop(parent) == 0
