# SPDX-License-Identifier: MIT
"""Submitting from the command line."""

from __future__ import annotations

import click
import pytest

from packhorse import JobStatus, Packhorse
from packhorse.cli.enqueue import parse_arguments
from packhorse.cli.exits import ExitCode
from packhorse.handle import JobHandle
from packhorse.stores.requests import Renewal
from tests.cli.project import JOBS, Project


@pytest.mark.parametrize(
    ("given", "positional", "named"),
    [
        (("1", "2.5", "true", "null"), [1, 2.5, True, None], {}),
        (("hello", "NaN", "01"), ["hello", "NaN", "01"], {}),
        (('"2026"', "[1, 2]", '{"a": 1}'), ["2026", [1, 2], {"a": 1}], {}),
        (("to=a@example.com", "n=3"), [], {"to": "a@example.com", "n": 3}),
        (("query=a=b", "empty="), [], {"query": "a=b", "empty": ""}),
        (("1", "b=2"), [1], {"b": 2}),
        (('"a=b"', "2=3"), ["a=b", "2=3"], {}),
    ],
)
def test_arguments_are_json_where_they_can_be_and_text_otherwise(
    given: tuple[str, ...], positional: list[object], named: dict[str, object]
) -> None:
    assert parse_arguments(given) == (positional, named)


@pytest.mark.parametrize("given", [("b=1", "2"), ("a=1", "a=2")])
def test_arguments_that_python_would_refuse_are_refused(given: tuple[str, ...]) -> None:
    with pytest.raises(click.UsageError):
        parse_arguments(given)


def test_the_id_is_all_there_is_on_stdout(project: Project, app: Packhorse) -> None:
    result = project.run("enqueue", "add", "1", "b=2")

    assert result.exit_code == 0
    assert app.job(result.stdout.strip()).status() is JobStatus.QUEUED
    assert result.stderr == "Using jobs:app (found in jobs.py)\n"


def test_every_option_reaches_the_job(project: Project, app: Packhorse) -> None:
    result = project.run(
        *("enqueue", "add", "1", "--queue", "mail", "--priority", "high", "--delay", "1h"),
        *("--tenant", "acme", "--tag", "x", "--tag", "y", "--id", "my-job"),
    )

    info = app.job("my-job").info()
    assert result.stdout == "my-job\n"
    assert (info.queue, info.priority, info.tenant, info.tags) == (
        "mail",
        "high",
        "acme",
        ("x", "y"),
    )
    assert info.status is JobStatus.PENDING
    assert (info.due_at - info.created_at).total_seconds() == 3600


def test_a_second_submit_of_an_id_is_the_same_job(project: Project) -> None:
    project.run("enqueue", "add", "1", "--id", "my-job")

    document = project.document("enqueue", "add", "1", "--id", "my-job")

    assert document == {"id": "my-job", "deduplicated": True}


def test_wait_prints_the_result_as_json(project: Project, app: Packhorse) -> None:
    project.run("enqueue", "greet", "you", "--id", "my-job")
    app.run(burst=True)

    again = ("enqueue", "greet", "you", "--id", "my-job", "--wait")

    assert project.run(*again).stdout == '"hello you"\n'
    assert project.document(*again)["result"] == "hello you"


def test_waiting_for_a_job_that_died_fails_and_says_why(project: Project, app: Packhorse) -> None:
    project.run("enqueue", "explode", "why=boom", "--id", "my-job")
    app.run(burst=True)

    result = project.run("enqueue", "explode", "why=boom", "--id", "my-job", "--wait")

    assert result.exit_code == ExitCode.FAILED
    assert "Error JOB_DEAD: job my-job is dead (poison_message): ValueError: boom" in result.stderr
    assert result.stdout == ""


def test_waiting_without_a_worker_says_so_and_ends_in_time(project: Project) -> None:
    result = project.run("enqueue", "add", "1", "--wait", "--timeout", "0.05")

    assert result.exit_code == ExitCode.FAILED
    assert "No live worker serves queue default" in result.stderr
    assert "Error RESULT_TIMEOUT" in result.stderr


def test_waiting_for_quiet_workers_is_pointed_out(project: Project, app: Packhorse) -> None:
    renewal = Renewal("w-1", 60_000_000, queues=("default",), tasks=("add",), quiet=True)
    app.store.run(app.store.leases.renew(renewal))

    result = project.run("enqueue", "add", "1", "--wait", "--timeout", "0.01s")

    assert "Every live worker of queue default is quiet" in result.stderr


def test_a_wait_that_comes_to_nothing_is_one_document_too(project: Project, app: Packhorse) -> None:
    project.run("enqueue", "explode", "why=boom", "--id", "dies")
    app.run(burst=True)

    dead = project.document("enqueue", "explode", "why=boom", "--id", "dies", "--wait", code=1)
    late = project.document(
        "enqueue", "add", "1", "--id", "late", "--wait", "--timeout", "0.05", code=1
    )

    assert (dead["id"], dead["deduplicated"]) == ("dies", True)
    assert dead["error"]["code"] == "JOB_DEAD"
    assert "ValueError: boom" in dead["error"]["message"]
    assert late == {
        "id": "late",
        "deduplicated": False,
        "error": {
            "code": "RESULT_TIMEOUT",
            "message": "job late did not finish within 0.05 s; it goes on regardless: see it with "
            "'packhorse jobs show late'",
        },
    }


def test_an_interrupted_wait_tells_which_job_goes_on(
    project: Project, app: Packhorse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(JobHandle, "result", interrupted)

    said = project.run("enqueue", "add", "1", "--id", "my-job", "--wait")
    document = project.document("enqueue", "add", "1", "--id", "my-job", "--wait", code=130)

    assert said.exit_code == ExitCode.INTERRUPTED
    assert said.stdout == ""
    assert (
        "Job my-job is stored and goes on; see it with 'packhorse jobs show my-job'." in said.stderr
    )
    assert document == {"id": "my-job", "deduplicated": True}
    assert app.job("my-job").status() is JobStatus.QUEUED


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("ad", "1"), "the app has no task 'ad'; did you mean 'add'?"),
        (("zzz",), "declared are: add, greet, explode"),
        (("add", "one"), "PAYLOAD_ERROR"),
        (("add", "1", "c=2"), "PAYLOAD_ERROR"),
        (("add", "1", "-2"), "before a negative number stands --, as in"),
        (("add", "-1.5"), "before a negative number stands --, as in"),
        (("add", "1", "-x"), "No such option"),
        (("add", "1", "--timeout", "3s"), "it needs --wait"),
        (("add", "1", "--delay", "soon"), "Invalid value for '--delay'"),
        (("add", "1", "--priority", "urgent"), "Invalid value for '--priority'"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_stored(
    project: Project, app: Packhorse, arguments: tuple[str, ...], problem: str
) -> None:
    result = project.run("enqueue", *arguments)

    assert result.exit_code == ExitCode.USAGE
    assert problem in result.stderr
    assert app.depth("default") == 0


def test_a_job_is_not_submitted_to_memory_that_is_about_to_go(project: Project) -> None:
    project.write("passing.py", JOBS.replace("sqlite:///jobs.db", "memory://"))

    result = project.run("enqueue", "add", "1", "--app", "passing")

    assert result.exit_code == ExitCode.USAGE
    assert "the job would be gone with this command" in result.stderr


def test_a_large_payload_is_warned_of_once(project: Project) -> None:
    result = project.finish("enqueue", "greet", "x" * 70_000)

    assert result.returncode == 0
    assert result.stderr.count("a payload of task greet is 70011 bytes") == 1
    assert "UserWarning" not in result.stderr


def test_a_store_that_other_commands_look_at_is_told_of(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = "PACKHORSE_URL names another store than jobs:app uses; commands without --app look there"
    silent = project.run("enqueue", "add", "1")
    monkeypatch.setenv("PACKHORSE_URL", "sqlite:///other.db")
    different = project.run("enqueue", "add", "1")
    named = project.run("enqueue", "add", "1", "--url", "sqlite:///jobs.db")
    worker = project.finish("worker", "jobs:app", "--burst", "--log-format", "console")
    monkeypatch.setenv("PACKHORSE_URL", "sqlite:///jobs.db")
    same = project.run("enqueue", "add", "1")

    assert different.stderr.count(told) == worker.stderr.count(told) == 1
    assert not any(told in each.stderr for each in (silent, named, same))
