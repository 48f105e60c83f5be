# SPDX-License-Identifier: MIT
"""`packhorse jobs`: looking at jobs, cancelling and retrying them."""

from __future__ import annotations

import logging
import re

import pytest

from packhorse import Context, Contract, JobStatus, NeedsHuman, Packhorse, Progress
from packhorse.cli.display import job_with_history
from packhorse.cli.exits import ExitCode
from packhorse.core.clock import new_id
from packhorse.core.job import NewJob
from packhorse.core.text import short_id
from packhorse.events import JobCancelled
from packhorse.protocol import TaskExecutionResult, instant_us
from packhorse.stores.requests import ClaimRequest, ProgressNote
from tests.cli.project import Project
from tests.cli.test_overview import hire


def submit(app: Packhorse, *ids: str, task: str = "add") -> None:
    for job_id in ids:
        arguments = {"why": "boom"} if task == "explode" else {"a": 1}
        app.tasks[task].using(job_id=job_id).enqueue(**arguments)


def listed(project: Project, *arguments: str) -> list[str]:
    return [job["id"] for job in project.document("jobs", "list", *arguments)["jobs"]]


@pytest.mark.req("S1-47")
def test_jobs_are_found_by_whatever_is_known_of_them(project: Project, app: Packhorse) -> None:
    add, greet = app.tasks["add"], app.tasks["greet"]
    add.using(job_id="plain").enqueue(1)
    add.using(job_id="tagged", tags=["x"], tenant="acme", created_by="billing").enqueue(1)
    greet.using(job_id="later", delay="1h", queue="mail").enqueue("you")

    assert listed(project) == ["later", "tagged", "plain"]
    assert listed(project, "--tag", "x") == ["tagged"]
    assert listed(project, "--tenant", "acme") == ["tagged"]
    assert listed(project, "--created-by", "billing") == ["tagged"]
    assert listed(project, "--task", "greet") == ["later"]
    assert listed(project, "--queue", "default") == ["tagged", "plain"]
    assert listed(project, "--status", "pending") == ["later"]
    assert listed(project, "--status", "pending", "--status", "queued", "--tag", "y") == []


def test_pages_follow_each_other_without_gap_or_overlap(project: Project, app: Packhorse) -> None:
    submit(app, "a", "b", "c")

    first = project.document("jobs", "list", "--limit", "2")
    second = project.document("jobs", "list", "--limit", "2", "--after", first["after"])

    assert [job["id"] for job in first["jobs"]] == ["c", "b"]
    assert [job["id"] for job in second["jobs"]] == ["a"]
    assert second["after"] is None


def test_the_table_says_how_to_see_more(project: Project, app: Packhorse) -> None:
    submit(app, "a", "b")

    result = project.run("jobs", "list", "--limit", "1")

    assert result.stdout.splitlines()[0].split()[:3] == ["ID", "TASK", "QUEUE"]
    assert result.stdout.splitlines()[1].split()[:4] == ["b", "add", "default", "queued"]
    assert "There are more: --after " in result.stderr


def test_a_listed_job_has_wire_names_and_wire_datetimes(project: Project, app: Packhorse) -> None:
    app.tasks["add"].using(job_id="a", timeout="90s").enqueue(1)

    (job,) = project.document("jobs", "list")["jobs"]

    assert job["timeoutMs"] == 90_000
    assert job["createdAt"].endswith("Z")
    assert instant_us(job["createdAt"]) == instant_us(job["dueAt"])
    assert job["startedAt"] is None
    assert {"deadReason", "deadLetter", "createdBy", "traceId", "fence"} <= set(job)


def test_a_job_is_shown_with_arguments_result_and_history(project: Project, app: Packhorse) -> None:
    submit(app, "a")
    app.run(burst=True)

    document = project.document("jobs", "show", "a")

    assert document["payload"] == {"a": 1}
    assert document["result"] == 1
    (line,) = document["history"]
    assert TaskExecutionResult.parse(line).result == 1
    assert line["status"] == "completed"


def test_a_job_is_shown_to_people_as_names_and_values(project: Project, app: Packhorse) -> None:
    submit(app, "a", task="explode")
    app.run(burst=True)

    result = project.run("jobs", "show", "a")

    assert "dead reason  poison_message" in result.stdout
    assert "error        ValueError: boom" in result.stdout
    assert '"why": "boom"' in result.stdout
    assert "ATTEMPT  STATUS" in result.stdout


def test_a_job_is_shown_with_its_artifacts(project: Project, app: Packhorse) -> None:
    @app.task
    def render(ctx: Context) -> None:
        ctx.artifacts.put("page.html", b"<p>")

    render.using(job_id="a").enqueue()
    app.run(burst=True)

    (artifact,) = project.document("jobs", "show", "a")["artifacts"]
    shown = project.run("jobs", "show", "a").stdout

    assert (artifact["name"], artifact["size"]) == ("page.html", 3)
    assert "ARTIFACT   BYTES  DIGEST" in shown
    assert f"page.html  3      {artifact['digest']}" in shown


def test_long_arguments_are_cut_unless_they_are_asked_for(project: Project, app: Packhorse) -> None:
    app.tasks["greet"].using(job_id="a").enqueue("x" * 5_000)

    result = project.run("jobs", "show", "a")
    whole = project.run("jobs", "show", "a", "--show-values")

    assert "… 4500 characters more" in result.stdout
    assert "characters more; see all with --json" in whole.stdout
    shown = project.document("jobs", "show", "a", "--show-values")
    assert shown["payload"] == {"name": "x" * 5_000}


def test_a_job_that_is_not_there_ends_with_7(project: Project) -> None:
    result = project.run("jobs", "show", "unknown", "--json")

    assert result.exit_code == ExitCode.NOTHING_MATCHED
    assert result.stdout == ""
    assert "Error JOB_NOT_FOUND: job unknown" in result.stderr


@pytest.mark.req("S3-14")
def test_cancelling_tells_what_became_of_each_job(project: Project, app: Packhorse) -> None:
    submit(app, "waiting", "done")
    app.run(burst=True, max_jobs=2)
    submit(app, "other")

    document = project.document("jobs", "cancel", "other", "done", "unknown", code=7)

    assert document == {
        "results": [
            {"id": "other", "answer": "cancelled"},
            {"id": "done", "answer": "finished"},
            {"id": "unknown", "answer": "unknown"},
        ]
    }
    assert app.job("other").status() is JobStatus.CANCELLED
    assert app.job("done").status() is JobStatus.COMPLETED


@pytest.mark.parametrize("chosen", [("waiting",), ("--all", "--yes")], ids=["id", "filter"])
def test_cancelling_emits_the_events_and_log_lines_of_the_library(
    project: Project, app: Packhorse, caplog: pytest.LogCaptureFixture, chosen: tuple[str, ...]
) -> None:
    submit(app, "waiting")
    told: list[str] = []
    app.on(JobCancelled)(lambda event: told.append(event.job_id))

    with caplog.at_level(logging.INFO, logger="packhorse"):
        assert project.run("jobs", "cancel", *chosen).exit_code == 0

    assert told == ["waiting"]
    lines = [record for record in caplog.records if record.message.startswith("add was cancelled")]
    assert [vars(record)["job_id"] for record in lines] == ["waiting"]


def test_cancelling_a_finished_job_fails_and_changes_nothing(
    project: Project, app: Packhorse
) -> None:
    submit(app, "done")
    app.run(burst=True)

    result = project.run("jobs", "cancel", "done")

    assert result.exit_code == ExitCode.FAILED
    assert result.stdout == "done  had finished already; nothing was changed\n"


def test_retrying_runs_a_finished_job_again(project: Project, app: Packhorse) -> None:
    submit(app, "done")
    app.run(burst=True)

    result = project.run("jobs", "retry", "done")

    assert result.stdout == "done  will run again\n"
    assert app.job("done").status() is JobStatus.QUEUED
    app.run(burst=True)
    assert len(app.job("done").history()) == 2


def test_retrying_a_ready_job_fails(project: Project, app: Packhorse) -> None:
    submit(app, "ready")

    assert project.document("jobs", "retry", "ready", code=1) == {
        "results": [{"id": "ready", "answer": "refused"}]
    }


def test_a_running_job_shows_how_far_it_is_and_its_worker_is_told_to_cancel(
    project: Project, app: Packhorse
) -> None:
    submit(app, "running")
    hire(app, "w-1", "default")
    store, seconds = app.store, 1_000_000
    request = ClaimRequest("w-1", ("default",), ("add",), 1, default_timeout_us=60 * seconds)
    (job,) = store.run(store.jobs.claim(request)).jobs
    note = ProgressNote(job.id, job.fence, Progress(1, 4, "a quarter"))
    store.run(store.jobs.note_progress([note]))

    table = project.run("jobs", "list").stdout
    shown = project.run("jobs", "show", "running").stdout
    answer = project.document("jobs", "cancel", "running")

    assert "processing  1 " in table
    assert "1/4 a quarter" in table
    assert "1/4 a quarter" in shown
    assert answer == {"results": [{"id": "running", "answer": "flagged"}]}
    assert project.document("jobs", "show", "running")["cancelRequested"] is True


def test_arguments_that_are_no_json_are_shown_as_they_are(app: Packhorse) -> None:
    store = app.store
    store.run(store.jobs.submit([NewJob(id="odd", task="add", payload=b"no json")]))
    record = store.run(store.inspection.job("odd"))
    assert record is not None

    assert job_with_history(record, ())["payload"] == "no json"


@pytest.mark.parametrize("verb", ["show", "cancel", "retry", "explain"])
@pytest.mark.parametrize("part", ["the end", "the beginning"])
def test_so_much_of_an_id_is_enough_that_one_job_is_meant(
    project: Project, app: Packhorse, verb: str, part: str
) -> None:
    whole, other = new_id(), "another-job"
    submit(app, whole, other)
    given = short_id(whole) if part == "the end" else whole[:20]

    command = ("explain",) if verb == "explain" else ("jobs", verb)
    result = project.run(*command, given, "--json")

    assert result.exit_code == (ExitCode.FAILED if verb == "retry" else 0), result.output
    assert whole in result.stdout


def test_a_part_of_several_ids_names_them_and_changes_nothing(
    project: Project, app: Packhorse
) -> None:
    submit(app, "order-17-a", "order-17-b")

    result = project.run("jobs", "cancel", "order-17")

    assert result.exit_code == ExitCode.USAGE
    assert "'order-17' is part of several ids: order-17-b, order-17-a; give more" in result.stderr
    assert app.depth("default") == 2
    assert project.run("jobs", "show", "rder-17-a").exit_code == 0


def test_a_part_that_is_too_short_is_told_so(project: Project, app: Packhorse) -> None:
    submit(app, "order-17-a", "xyz")

    for command in (("jobs", "show"), ("jobs", "logs"), ("explain",)):
        result = project.run(*command, "7-a")
        assert result.exit_code == ExitCode.NOTHING_MATCHED
        assert "JOB_NOT_FOUND" in result.stderr
        assert "no job has the id '7-a'; of a longer id give 4 characters" in result.stderr
    assert project.run("jobs", "show", "xyz").exit_code == 0  # it is whole
    assert project.run("jobs", "cancel", "7-a", "xyz").exit_code == ExitCode.NOTHING_MATCHED
    assert app.job("xyz").status() is JobStatus.CANCELLED  # as beside other unknown ids


def test_another_tenants_id_is_not_completed(project: Project, app: Packhorse) -> None:
    app.tasks["add"].using(job_id="theirs-1", tenant="acme").enqueue(1)

    result = project.run("explain", "theirs", "--tenant", "other")

    assert result.exit_code == ExitCode.NOTHING_MATCHED
    assert "theirs-1" not in result.output


def test_a_signal_wakes_a_job_and_its_steps_are_shown(project: Project, app: Packhorse) -> None:
    job = app.tasks["publish"].enqueue()
    app.run(burst=True)

    shown = project.run("jobs", "show", job.id).stdout
    assert re.search(r"^draft +step +done ", shown, re.MULTILINE)
    assert re.search(r"^approved#1 +wait +open ", shown, re.MULTILINE)
    assert "Besides, 1 job of default waits for" in project.run("queues", "list").stdout
    assert project.run("jobs", "signal", job.id[:18], "approved", '{"by": "ada"}').exit_code == 0
    app.run(burst=True)

    assert job.result() == "ada"
    steps = project.document("jobs", "show", job.id)["steps"]
    assert [(step["name"], step["state"]) for step in steps] == [
        ("draft", "done"),
        ("approved#1", "done"),
    ]


def test_jobs_are_approved_and_declined_and_say_who_did(project: Project, app: Packhorse) -> None:
    @app.task
    def ask(ctx: Context) -> str:
        ctx.spend(tokens=7)
        if ctx.approval is None:
            raise NeedsHuman("may I?")
        return ctx.approval.note

    yes, no = ask.enqueue(), ask.enqueue()
    app.run(burst=True)
    assert "waits for a person" in project.run("explain", yes.id).stdout
    besides = "Besides, 2 jobs of default wait for a person, a signal or the end of a sleep."
    assert besides in project.run("queues", "list").stdout
    approve = ("jobs", "approve", yes.id, "--by", "ada", "--note", "do")
    assert project.run(*approve).stdout == f"Approved {yes.id}.\n"
    assert project.run("jobs", "decline", no.id, "--by", "bob").exit_code == 0
    assert project.run("jobs", "decline", no.id).exit_code == ExitCode.USAGE
    app.run(burst=True)

    assert (yes.result(), no.status()) == ("do", JobStatus.DEAD)
    shown = project.run("jobs", "show", yes.id).stdout
    assert re.search(r"^approved +ada ", shown, re.MULTILINE)
    assert re.search(r"^tokens spent +14$", shown, re.MULTILINE)
    assert project.run(*approve).exit_code == ExitCode.FAILED
    (decision,) = project.document("jobs", "show", no.id)["approvals"]
    assert (decision["by"], decision["approved"]) == ("bob", False)
    early = ask.enqueue()
    told = project.run("jobs", "approve", early.id, "--by", "ada").stdout
    assert "kept until it does" in told


def test_an_operator_resets_what_was_spent(project: Project, app: Packhorse) -> None:
    @app.task(contract=Contract(worker_id="writer", max_tokens=10))
    def write(ctx: Context) -> None:
        ctx.spend(tokens=10 if ctx.job.attempt > 1 else 11)

    jobs = [write.enqueue(), write.enqueue()]
    app.run(burst=True)
    assert [job.status() for job in jobs] == [JobStatus.DEAD] * 2

    assert project.run("jobs", "retry", jobs[0].id, "--reset-budget").exit_code == 0
    assert project.run("dead", "redrive", jobs[1].id, "--reset-budget").exit_code == 0
    app.run(burst=True)

    assert [job.status() for job in jobs] == [JobStatus.COMPLETED] * 2


def test_a_signal_that_cannot_be_sent_says_why(project: Project, app: Packhorse) -> None:
    submit(app, "done")
    app.run(burst=True)

    assert "not JSON" in project.run("jobs", "signal", "done", "approved", "by ada").stderr
    result = project.run("jobs", "signal", "done", "approved")
    assert result.exit_code == ExitCode.FAILED
    assert "has finished" in result.stderr


def test_what_a_job_logged_is_shown_by_a_part_of_its_id(
    project: Project, app: Packhorse, caplog: pytest.LogCaptureFixture
) -> None:
    def sign() -> None:
        log = logging.getLogger("shop")
        log.warning("password=hunter2\nsecond\x1b[2J line")

    app.task(name="sign")(sign)
    job = app.tasks["sign"].enqueue()
    app.run(burst=True, handle_signals=False)

    [line] = project.document("jobs", "logs", short_id(job.id))["lines"]
    told = project.run("jobs", "logs", short_id(job.id))

    assert (line["attempt"], line["level"], line["logger"]) == (1, "warning", "shop")
    assert line["message"] == "password=[redacted]\nsecond\x1b[2J line"
    assert told.exit_code == 0
    head, second = told.stdout.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d 1 warning shop: password=\[redacted\]", head)
    assert second == "  second [2J line"
    submit(app, "waits")
    assert project.run("jobs", "logs", "waits").output.endswith("No lines are kept.\n")
