# SPDX-License-Identifier: MIT
"""Queues, workers, stats, health and migrate."""

from __future__ import annotations

from pathlib import Path

import pytest

from packhorse import JobStatus, Packhorse
from packhorse.cli.exits import ExitCode
from packhorse.core.clock import new_id
from packhorse.protocol import WorkerStats, instant_us
from packhorse.stores.requests import Renewal
from tests.cli.project import Project


def hire(
    app: Packhorse,
    worker: str,
    *queues: str,
    lease_us: int = 60_000_000,
    quiet: bool = False,
) -> None:
    """Register a worker with the store."""
    renewal = Renewal(
        worker,
        lease_us,
        queues=queues,
        tasks=("add",),
        host="here",
        pid=7,
        version="1.2",
        quiet=quiet,
    )
    app.store.run(app.store.leases.renew(renewal))


def test_queues_are_listed_with_what_they_hold(project: Project, app: Packhorse) -> None:
    app.tasks["add"].enqueue(1)
    app.tasks["add"].using(delay="1h").enqueue(1)

    queues = {queue["name"]: queue for queue in project.document("queues", "list")["queues"]}

    assert set(queues) == {"default", "mail"}
    assert queues["default"]["depth"] == 2
    assert queues["default"]["counts"] == {"queued": 1, "pending": 1}
    assert queues["default"]["oldestReadyMs"] >= 0
    assert queues["mail"]["oldestReadyMs"] is None
    assert queues["mail"]["declared"] is True


def test_a_paused_queue_says_so_and_gives_nothing_out_until_it_is_resumed(
    project: Project, app: Packhorse
) -> None:
    job = app.tasks["add"].enqueue(1)

    assert project.document("queues", "pause", "default")["changed"] is True
    assert project.run("queues", "pause", "default").stdout == (
        "Queue default was paused already.\n"
    )
    assert "default  paused" in project.run("queues", "list").stdout
    app.run(burst=True)
    assert job.status() is JobStatus.QUEUED

    assert project.run("queues", "resume", "default").stdout == "Queue default is open.\n"
    app.run(burst=True)
    assert job.status() is JobStatus.COMPLETED


def test_a_mistyped_queue_is_not_paused(project: Project, app: Packhorse) -> None:
    app.tasks["explode"].enqueue()

    result = project.run("queues", "pause", "mial")

    assert result.exit_code == ExitCode.NOTHING_MATCHED
    assert "did you mean 'mail'?" in result.stderr


def test_workers_are_listed_live_or_gone(project: Project, app: Packhorse) -> None:
    hire(app, "w-live", "default", "mail")
    hire(app, "w-gone", "default", lease_us=0)

    workers = {worker["id"]: worker for worker in project.document("workers", "list")["workers"]}
    table = project.run("workers", "list").stdout

    assert workers["w-live"]["live"] is True
    assert workers["w-gone"]["live"] is False
    assert workers["w-live"]["queues"] == ["default", "mail"]
    assert instant_us(workers["w-live"]["expiresAt"]) > instant_us(workers["w-live"]["renewedAt"])
    assert "w-gone  gone   here  7" in table


@pytest.mark.req("S1-60", "S1-62")
def test_stats_are_the_protocols_shape_with_the_age_of_the_oldest_job(
    project: Project, app: Packhorse
) -> None:
    app.tasks["add"].enqueue(1)
    app.tasks["explode"].enqueue()
    app.run(burst=True)
    app.tasks["add"].using(queue="later").enqueue(1)
    hire(app, "w-1", "default")

    document = project.document("stats")

    stats = WorkerStats.parse(document)
    assert (stats.total_processed, stats.succeeded, stats.failed) == (2, 1, 1)
    assert stats.active == 0
    assert document["avgExecutionMs"] >= 0
    later, mail = document["queues"]["later"], document["queues"]["mail"]
    assert later.pop("oldestReadyMs") >= 0
    assert list(later.pop("oldestReadyMsByPriority")) == ["normal"]
    assert later == {"pending": 1, "active": 0, "completed": 0, "failed": 0}
    assert mail == {"pending": 0, "active": 0, "completed": 0, "failed": 1}


@pytest.mark.req("S1-61")
def test_stats_have_no_average_before_anything_was_processed(project: Project) -> None:
    document = project.document("stats")

    assert "avgExecutionMs" not in document
    assert document["totalProcessed"] == 0


def test_stats_of_a_range_tell_how_long_tasks_waited_and_ran(
    project: Project, app: Packhorse
) -> None:
    app.tasks["add"].enqueue(1)
    app.run(burst=True, handle_signals=False)

    document = project.document("stats", "--range", "1h")
    told = project.run("stats", "--range", "1h").stdout.splitlines()

    (task,) = document["tasks"]
    assert (task["task"], task["succeeded"], len(document["points"])) == ("add", 1, 60)
    assert task["runP95Ms"] is not None
    assert told[0].startswith("1 attempts in 1h, 0 failed; the oldest ready job waited for 0")
    assert told[3].split()[:3] == ["TASK", "ATTEMPTS", "FAILED"]
    assert told[4].split()[:3] == ["add", "1", "0"]


def test_stats_for_people_say_it_in_a_line_and_a_table(project: Project, app: Packhorse) -> None:
    app.tasks["add"].enqueue(1)
    app.run(burst=True)

    lines = project.run("stats").stdout.splitlines()

    assert lines[0].startswith("processed 1: succeeded 1, failed 0; active 0; ")
    assert lines[0].endswith("no live worker")
    assert lines[3].split() == ["default", "0", "0", "1", "0", "-", "0", "0", "-"]


def test_health_is_good_with_a_live_worker_and_imports_no_user_code(
    project: Project, app: Packhorse
) -> None:
    hire(app, "w-1", "mail")
    project.write("jobs.py", "raise AssertionError('imported')\n# Packhorse(")
    url = ("--url", "sqlite:///jobs.db")

    result = project.finish("health", *url, "--json")

    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert '"liveWorkers": 1' in result.stdout
    assert project.run("health", *url, "--queue", "mail").exit_code == 0
    assert project.run("health", *url, "--queue", "default").exit_code == ExitCode.UNHEALTHY
    assert project.run("health", *url, "--workers", "2").exit_code == ExitCode.UNHEALTHY


def test_health_of_a_queue_does_not_count_quiet_workers(project: Project, app: Packhorse) -> None:
    hire(app, "w-1", "mail", quiet=True)
    url = ("--url", "sqlite:///jobs.db")

    assert project.document("health", *url, "--queue", "mail", code=6)["liveWorkers"] == 0
    assert project.document("health", *url)["liveWorkers"] == 1

    hire(app, "w-2", "mail")

    assert project.document("health", *url, "--queue", "mail")["liveWorkers"] == 1


def test_health_without_a_worker_is_bad_unless_none_is_wanted(project: Project) -> None:
    url = ("--url", "sqlite:///jobs.db")

    assert project.document("health", *url, code=6)["healthy"] is False
    assert project.document("health", *url, "--workers", "0")["healthy"] is True


def test_health_without_a_url_says_which_file_it_means_and_how_to_mean_another(
    project: Project, folder: Path
) -> None:
    result = project.run("health")

    assert result.exit_code == ExitCode.SCHEMA
    assert f"there is no store at sqlite:///{folder / 'packhorse.db'}" in result.stderr
    assert "health looks for no app" in result.stderr
    assert "with --url or PACKHORSE_URL" in result.stderr
    assert "packhorse migrate" not in result.stderr


@pytest.mark.parametrize("command", ["stats", "health", "doctor"])
def test_looking_does_not_create_a_store(folder: Path, command: str) -> None:
    result = Project(folder).run(command, "--url", "sqlite:///typo.db")

    assert result.exit_code == ExitCode.SCHEMA
    assert f"there is no store at sqlite:///{folder / 'typo.db'} yet" in result.stderr
    assert not (folder / "typo.db").exists()


@pytest.mark.parametrize("command", ["stats", "health", "doctor"])
def test_looking_leaves_the_file_of_another_program_alone(folder: Path, command: str) -> None:
    import sqlite3

    connection = sqlite3.connect(folder / "other.db")
    connection.execute("create table users (name)")
    connection.close()
    before = (folder / "other.db").read_bytes()

    result = Project(folder).run(command, "--url", "sqlite:///other.db")

    assert result.exit_code == ExitCode.SCHEMA
    assert (folder / "other.db").read_bytes() == before


def test_a_store_that_cannot_be_opened_ends_with_3(folder: Path) -> None:
    result = Project(folder).run("migrate", "--url", "sqlite:///missing/folder/jobs.db")

    assert result.exit_code == ExitCode.STORE_UNREACHABLE
    assert "Error STORE_UNAVAILABLE" in result.stderr


def test_a_schema_of_a_later_release_ends_with_5(project: Project, app: Packhorse) -> None:
    import sqlite3

    connection = sqlite3.connect("jobs.db")
    connection.execute("update packhorse_schema set version = 999")
    connection.commit()
    connection.close()

    result = project.run("stats", "--url", "sqlite:///jobs.db")

    assert result.exit_code == ExitCode.SCHEMA
    assert "Error SCHEMA_OUT_OF_DATE" in result.stderr


def test_migrate_creates_the_store_and_says_where_it_is(folder: Path) -> None:
    project = Project(folder)

    document = project.document("migrate", "--url", "sqlite:///new.db")

    assert document == {"store": f"sqlite:///{folder / 'new.db'}", "schema": document["schema"]}
    assert document["schema"] >= 1
    assert (folder / "new.db").exists()


def test_the_store_is_taken_from_flag_then_environment_then_app(
    project: Project, folder: Path
) -> None:
    (folder / "secret").write_text("sqlite:///from_file.db\n", "utf-8")

    def store(*arguments: str, **environment: str) -> str:
        result = project.run("migrate", *arguments, env=environment)
        return result.stdout.split()[0].rpartition("/")[2]

    assert store() == "jobs.db"
    assert store(PACKHORSE_URL="sqlite:///from_variable.db") == "from_variable.db"
    assert store(PACKHORSE_URL_FILE="secret") == "from_file.db"
    assert store("--app", "jobs", PACKHORSE_URL="sqlite:///from_variable.db") == "jobs.db"
    assert store("--url", "sqlite:///flag.db", PACKHORSE_URL="sqlite:///v.db") == "flag.db"


def test_a_command_that_only_needs_the_store_imports_no_user_code(project: Project) -> None:
    project.write("jobs.py", "raise AssertionError('imported')\n# Packhorse(")

    assert project.run("stats", "--url", "sqlite:///jobs.db").exit_code == 0
    assert project.run("stats", env={"PACKHORSE_URL": "sqlite:///jobs.db"}).exit_code == 0
    result = project.run("stats")
    assert result.exit_code == ExitCode.APP_NOT_LOADED
    assert "Or name the store alone, with --url." in result.stderr


@pytest.mark.parametrize(
    ("command", "environment"),
    [
        (("dead", "purge", "--all", "--yes", "--url", ""), {}),
        (("dead", "purge", "--all", "--yes", "--app", ""), {}),
        (("dead", "purge", "--all", "--yes"), {"PACKHORSE_URL": ""}),
        (("dead", "purge", "--all", "--yes"), {"PACKHORSE_URL_FILE": ""}),
        (("dead", "purge", "--all", "--yes"), {"PACKHORSE_APP": ""}),
        (("migrate", "--url", ""), {}),
        (("health", "--url", ""), {}),
        (("copy", "--from", "", "--to", "sqlite:///new.db", "--yes"), {}),
        (("copy", "--from", "sqlite:///jobs.db", "--to", "", "--yes"), {}),
    ],
)
def test_an_empty_name_of_a_store_does_not_mean_another_one(
    project: Project, command: tuple[str, ...], environment: dict[str, str]
) -> None:
    result = project.run(*command, env=environment)

    assert result.exit_code in (ExitCode.USAGE, ExitCode.APP_NOT_LOADED)
    assert "empty" in result.stderr
    assert result.stdout == ""


def test_url_and_app_together_are_refused(project: Project) -> None:
    result = project.run("stats", "--url", "sqlite:///jobs.db", "--app", "jobs")

    assert result.exit_code == ExitCode.USAGE


def test_memory_of_another_process_cannot_be_looked_at(folder: Path) -> None:
    result = Project(folder).run("stats", "--url", "memory://")

    assert result.exit_code == ExitCode.USAGE
    assert "there is nothing to see from here" in result.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [("jobs", "No jobs."), ("dead", "No dead letters."), ("workers", "No workers.")],
)
def test_empty_lists_are_no_error(project: Project, command: str, said: str) -> None:
    result = project.run(command, "list")

    assert result.exit_code == 0
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1] == said


@pytest.mark.parametrize(
    "command", ["jobs list", "dead list", "workers list", "queues list", "stats"]
)
def test_every_table_fits_a_terminal_of_80_columns(
    project: Project, app: Packhorse, command: str
) -> None:
    app.set_limits("mail", concurrency=500, rate_limit=(100, "60s"), max_depth=100_000)
    for priority in ("high", "normal", "low"):
        app.tasks["greet"].using(priority=priority, queue="weekly-newsletters").enqueue("you")
    app.tasks["explode"].enqueue("a long story that does not fit " * 9)
    app.run(["mail"], burst=True)
    renewal = Renewal(
        new_id(),
        60_000_000,
        queues=("default", "mail", "weekly-newsletters"),
        host="worker-7.europe.example.com",
        pid=4_194_304,
        version="1.2 3f2a9c1b",
        concurrency=100,
    )
    app.store.run(app.store.leases.renew(renewal))

    result = project.run(*command.split(), env={"COLUMNS": "80"})

    rows = [line for line in result.stdout.splitlines() if line.count("  ") > 2]
    assert rows, result.output
    assert max(map(len, rows)) <= 80, max(rows, key=len)
