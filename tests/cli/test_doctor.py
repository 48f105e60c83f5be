# SPDX-License-Identifier: MIT
"""`packhorse doctor`: each common mistake is found, and a sound store is left in peace."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from packhorse import JobStatus, Packhorse
from packhorse.cli.doctor_checks import Finding, Severity, findings
from packhorse.cli.doctor_survey import OutboxLook, Survey
from packhorse.cli.exits import ExitCode
from packhorse.client.schedules import ScheduleInfo
from packhorse.core.clock import to_datetime
from packhorse.core.policies.schedule_times import Timing
from packhorse.insights import QueueInfo, WorkerInfo
from packhorse.protocol import WorkerStats
from packhorse.stores.requests import QueueSettings
from packhorse.testing.conformance.samples import new_job
from tests.cli.project import Project
from tests.cli.test_overview import hire

OUTBOX_JOBS = """
from packhorse import Packhorse

app = Packhorse("sqlite:///jobs.db")
app.outbox("sqlite:///shop.db")
"""
NOW_US = 1_800_000_000_000_000


def survey(**changes: Any) -> Survey:
    sound: dict[str, Any] = {
        "facts": {"synchronous": "FULL", "writable": "yes"},
        "queues": (queue(),),
        "workers": (worker(),),
        "store_us": NOW_US,
        "skew_us": 0,
        "version": "1.0",
        "tasks": ("add",),
    }
    return Survey(**{**sound, **changes})


def schedule(overdue_s: float = 0.0, state: str = "active") -> ScheduleInfo:
    return ScheduleInfo(
        name="nightly",
        state=state,
        words="every day",
        task="add",
        queue="mail",
        timing=Timing(every_us=1),
        overdue_s=overdue_s,
    )


def queue(
    name: str = "mail",
    *,
    paused: bool = False,
    closed: bool = False,
    held_bytes: int | None = None,
    **counts: int,
) -> QueueInfo:
    by_status = {JobStatus(status): number for status, number in counts.items()}
    waiting = sum(number for status, number in by_status.items() if status != "dead")
    return QueueInfo(
        name=name,
        priority=0,
        dead_letter=None,
        paused=paused,
        declared=True,
        closed=closed,
        overridden=False,
        paused_keys=(),
        paused_tenants=(),
        settings=QueueSettings(name, max_bytes=None if held_bytes is None else 1000),
        held_bytes=held_bytes,
        depth=waiting,
        counts=by_status,
        oldest_ready_s=90.0 if "queued" in counts else None,
    )


def worker(name: str = "w-1", *, live: bool = True, **changes: Any) -> WorkerInfo:
    moment = to_datetime(NOW_US)
    usual: dict[str, Any] = {
        "host": "here",
        "pid": 7,
        "version": "1.0",
        "queues": ("mail",),
        "tasks": ("add",),
        "concurrency": 10,
        "running": 0,
        "started_at": moment,
        "renewed_at": moment,
        "expires_at": moment + timedelta(seconds=30),
        "stats": WorkerStats(
            worker_name=name, total_processed=0, succeeded=0, failed=0, active=0, uptime_ms=0
        ),
    }
    return WorkerInfo(id=name, live=live, **{**usual, **changes})


def trouble(found: list[Finding]) -> list[tuple[str, Severity]]:
    return [(one.check, one.level) for one in found if one.level is not Severity.OK]


def test_a_sound_store_has_nothing_to_report() -> None:
    found = findings(survey(queues=(queue(queued=3),)))

    assert trouble(found) == []
    assert {one.message for one in found} == {"nothing to report"}


@pytest.mark.parametrize(
    ("changes", "check", "level", "text"),
    [
        ({"queues": (queue(held_bytes=800),)}, "bytes", "warning", "800 B of 1 kB (80%); when"),
        ({"queues": (queue(held_bytes=1001),)}, "bytes", "problem", "takes no more jobs"),
        ({"store_bytes": (9, 10)}, "bytes", "warning", "the store holds 9 B of 10 B (90%)"),
        ({"skew_us": 5_000_000}, "clock", "warning", "5s ahead of this machine's"),
        ({"skew_us": -65_000_000}, "clock", "warning", "1m 5s behind this machine's"),
        ({"store_us": 10**15, "workers": ()}, "clock", "problem", "years behind"),
        (
            {"workers": (worker(renewed_at=to_datetime(NOW_US + 10**8)),)},
            "clock",
            "problem",
            "leases of w-1 were renewed in the future",
        ),
        ({"facts": {"synchronous": "NORMAL"}}, "durability", "warning", "synchronous=NORMAL"),
        ({"facts": {"synchronous": "OFF"}}, "durability", "problem", "can destroy the file"),
        ({"facts": {"writable": "no"}}, "durability", "problem", "may not write the store"),
        (
            {"queues": (queue("reports", queued=2),)},
            "queues",
            "problem",
            "queue reports holds 2 jobs, the oldest for 1m 30s, and no live worker claims from it",
        ),
        ({"queues": (queue("reports", pending=1),)}, "queues", "warning", "holds 1 job, and no"),
        (
            {"queues": (queue(queued=1),), "workers": (worker(live=False),)},
            "queues",
            "problem",
            "'packhorse worker -q mail'",
        ),
        ({"queues": (queue(paused=True, queued=1),)}, "queues", "warning", "resume mail"),
        ({"queues": (queue(closed=True),)}, "queues", "warning", "packhorse queues open mail"),
        ({"unreadable": Counter(k1=2)}, "keys", "problem", "2 jobs of the oldest 20 that wait"),
        ({"parked": Counter(old=3)}, "tasks", "problem", "3 jobs of task old set aside"),
        ({"tasks": ("add", "new")}, "tasks", "warning", "no live worker knows: new"),
        (
            {"facts": {"intake": "3 waiting"}, "workers": ()},
            *("transactions", "warning", "3 waiting, and no worker is live"),
        ),
        (
            {"outboxes": (OutboxLook("db", waiting=3, oldest_s=90),)},
            *("outbox", "problem", "3 reque"),
        ),
        (
            {"outboxes": (OutboxLook("db", waiting=1, oldest_s=61, is_drained=True),)},
            *("outbox", "problem", "the oldest for 1m 1s, though a worker"),
        ),
        ({"outboxes": (OutboxLook("db", exists=False),)}, *("outbox", "problem", "migrate")),
        ({"outboxes": (OutboxLook("db", trouble="gone"),)}, *("outbox", "problem", "gone")),
        (
            {"schedules": (schedule(),), "workers": (), "queues": ()},
            *("schedules", "warning", "no worker looks: 1 schedule to fire"),
        ),
        (
            {"schedules": (schedule(90),), "workers": (), "queues": ()},
            *("schedules", "problem", "nightly has been due for 1m 30s"),
        ),
        ({"schedules": (schedule(31),)}, "schedules", "problem", "nightly has been due for 31s"),
        ({"dead": 9, "dead_recently": 2}, "dead letters", "warning", "2 jobs died in the last"),
        (
            {"orphaned_workers": 1},
            "workers",
            "warning",
            "1 worker went away and still holds jobs; the others take them over",
        ),
        ({"orphaned_workers": 2}, "workers", "warning", "2 workers went away and still hold jobs"),
        ({"orphaned_workers": 1, "workers": ()}, "workers", "problem", "start a worker"),
        (
            {"workers": (worker(), worker("w-2", version="0.9"))},
            "workers",
            "warning",
            "several releases: 0.9, 1.0",
        ),
        (
            {"workers": (worker(), worker("w-2", quiet=True))},
            "workers",
            "warning",
            "quiet, and claiming nothing: w-2",
        ),
        ({"version": "2.0"}, "workers", "warning", "live workers are 1.0, this command is 2.0"),
    ],
)
def test_each_mistake_is_found(changes: dict[str, Any], check: str, level: str, text: str) -> None:
    found = findings(survey(**changes))

    assert trouble(found) == [(check, Severity(level))]
    assert any(text in one.message for one in found)


def test_a_queue_that_is_neither_served_nor_declared_may_be_mistyped() -> None:
    mistyped = msgspec.structs.replace(queue("mial", queued=1), declared=False)

    found = findings(survey(queues=(queue(), mistyped)))

    [text] = [finding.message for finding in found if "mial" in finding.message]
    assert text.startswith("queue mial (did you mean 'mail'?) holds 1 job")


def test_a_queue_that_only_quiet_workers_serve_is_trouble() -> None:
    found = findings(survey(queues=(queue(queued=1),), workers=(worker(quiet=True),)))

    assert trouble(found) == [("queues", Severity.PROBLEM), ("workers", Severity.WARNING)]
    [text] = [one.message for one in found if one.check == "queues"]
    assert "quiet; let them go on: 'packhorse workers resume'" in text
    assert "start one" not in text


def test_the_doctor_has_no_worker_started_on_a_store_that_was_copied(folder: Path) -> None:
    project = Project(folder)
    project.write("jobs.py", OUTBOX_JOBS.replace('app.outbox("sqlite:///shop.db")', ""))
    app = project.app()
    app.store.run(app.store.jobs.submit([new_job("left")]))
    app.close()
    urls = ("--from", "sqlite:///jobs.db", "--to", "sqlite:///new.db")
    assert project.run("copy", *urls, "--yes").exit_code == 0

    result = project.run("doctor", "--json")
    found = {one["check"]: one for one in json.loads(result.stdout)["findings"]}

    assert result.exit_code == ExitCode.UNHEALTHY
    assert found["copied"]["level"] == "problem"
    assert "new.db, so workers and submits refuse this store" in found["copied"]["message"]
    assert not any("start" in one["message"] for one in found.values())


def test_a_queue_with_room_for_more_bytes_is_no_trouble() -> None:
    found = findings(survey(queues=(queue(held_bytes=799),)))

    assert trouble(found) == []
    assert any(one.message == "queue mail holds 799 B of 1 kB (79%)" for one in found)


def test_an_empty_outbox_is_no_trouble() -> None:
    found = findings(survey(outboxes=(OutboxLook("db"), OutboxLook("shop", is_drained=True))))

    assert trouble(found) == []
    assert [one.message for one in found if one.check == "outbox"] == [
        "the outbox (db) is empty; no worker drains it",
        "the outbox (shop) is empty; a worker drains it",
    ]


def test_old_dead_letters_are_counted_and_no_trouble() -> None:
    found = findings(survey(dead=4))

    assert trouble(found) == []
    assert Finding("dead letters", Severity.OK, "4 jobs dead, none in the last hour") in found


def test_the_doctor_finds_what_is_wrong_with_a_real_store(project: Project, app: Packhorse) -> None:
    app.tasks["explode"].enqueue()
    app.run(burst=True)
    app.tasks["add"].enqueue(1)

    document = project.document("doctor", code=6)

    levels = {one["check"]: one["level"] for one in document["findings"]}
    assert document["ok"] is False
    assert document["facts"]["file"].endswith("jobs.db")
    assert document["facts"]["schema"] >= "1"
    assert levels["queues"] == "problem"
    assert levels["dead letters"] == "warning"
    assert levels["clock"] == "ok"


def test_the_doctor_sees_parked_jobs(project: Project, app: Packhorse) -> None:
    app.tasks["greet"].enqueue("you")
    hire(app, "w-1", "default")  # which knows `add` alone
    app.store.run(app.store.upkeep.park(after_us=10**12, limit=10))

    result = project.run("doctor")

    assert result.exit_code == 6
    assert "1 job of task greet set aside" in result.stdout


def test_the_doctors_advice_is_whole_on_a_narrow_terminal(project: Project, app: Packhorse) -> None:
    app.tasks["greet"].enqueue("you")

    result = project.run("doctor", env={"COLUMNS": "60"})

    said = " ".join(result.stdout.split())
    assert "no live worker claims from it; start one: 'packhorse worker -q default'" in said
    assert "…" not in result.stdout


def test_the_doctor_is_content_with_an_empty_store(project: Project) -> None:
    document = project.document("doctor")

    assert document["ok"] is True


def test_the_doctor_reads_synchronous_from_the_url(project: Project) -> None:
    document = project.document("doctor", "--url", "sqlite:///jobs.db?synchronous=OFF", code=6)

    assert document["facts"]["synchronous"] == "OFF"


def test_migrate_makes_the_table_and_doctor_asks_for_it(folder: Path) -> None:
    project = Project(folder)
    project.write("jobs.py", OUTBOX_JOBS)

    project.run("migrate", "--url", "sqlite:///jobs.db")  # of the store alone

    before = project.run("doctor", "--app", "jobs:app")
    document = project.document("migrate", "--app", "jobs:app")
    after = project.run("doctor", "--app", "jobs:app")

    assert "no table yet" in before.stdout.replace("\n", " ")
    assert document["outboxes"] == [f"sqlite:///{folder}/shop.db, table packhorse_outbox"]
    assert "no table yet" not in after.stdout


def test_schedules_that_wait_for_their_time_are_left_in_peace() -> None:
    paused = schedule(900, state="paused")

    found = findings(survey(schedules=(schedule(29), paused)))

    assert Finding("schedules", Severity.OK, "nothing to report") in found
