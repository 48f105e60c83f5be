# SPDX-License-Identifier: MIT
"""Many jobs at once, chosen by options: cancelled, or removed once they are over."""

from __future__ import annotations

import pytest

from packhorse import JobStatus, Packhorse
from packhorse.cli import output, selection
from packhorse.cli.exits import ExitCode
from packhorse.core.job import Job
from packhorse.stores.requests import ClaimRequest
from tests.cli.project import Project
from tests.cli.test_overview import hire


def take(app: Packhorse, worker: str) -> Job:
    """Have a worker claim the next job of the default queue."""
    hire(app, worker, "default")
    request = ClaimRequest(worker, ("default",), ("*",), limit=1, default_timeout_us=60_000_000)
    (job,) = app.store.run(app.store.jobs.claim(request)).jobs
    return job


@pytest.fixture
def crowd(app: Packhorse) -> Packhorse:
    """One job runs, one waits, one is due later, one waits elsewhere, one has finished."""
    add = app.tasks["add"]
    add.using(job_id="done").enqueue(1)
    app.run(["default"], burst=True)
    add.using(job_id="running").enqueue(1)
    take(app, "w-1")
    add.using(job_id="waiting", tags=["x"]).enqueue(1)
    add.using(job_id="later", delay="1h", tenant="acme").enqueue(1)
    app.tasks["greet"].using(job_id="elsewhere", queue="mail").enqueue("you")
    return app


def statuses(app: Packhorse) -> dict[str, str]:
    return {job.id: str(job.status) for job in app.insights.jobs().jobs}


BEFORE = {
    "elsewhere": "queued",
    "later": "pending",
    "waiting": "queued",
    "running": "processing",
    "done": "completed",
}


@pytest.mark.parametrize(
    ("options", "cancelled"),
    [
        (["--queue", "default"], {"waiting", "later"}),
        (["--task", "greet"], {"elsewhere"}),
        (["--tag", "x"], {"waiting"}),
        (["--tenant", "acme"], {"later"}),
        (["--older-than", "0s"], {"waiting", "later", "elsewhere"}),
        (["--all"], {"waiting", "later", "elsewhere"}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_unfinished_jobs_are_cancelled_by_what_is_known_of_them(
    project: Project, crowd: Packhorse, options: list[str], cancelled: set[str]
) -> None:
    flagged = int(bool({"--queue", "--older-than", "--all"} & set(options)))
    numbers = {"matched": len(cancelled) + flagged, "cancelled": len(cancelled), "finished": 0}

    planned = project.document("jobs", "cancel", *options, "--dry-run")
    assert planned == {"matched": numbers["matched"], "cancelled": 0, "flagged": 0, "finished": 0}
    assert statuses(crowd) == BEFORE

    done = project.document("jobs", "cancel", *options, "--yes")

    assert done == {**numbers, "flagged": flagged}
    assert statuses(crowd) == {**BEFORE, **dict.fromkeys(cancelled, "cancelled")}


@pytest.mark.parametrize("verb", ["cancel", "purge"])
def test_a_job_that_is_not_old_enough_is_left_alone(
    project: Project, crowd: Packhorse, verb: str
) -> None:
    result = project.run("jobs", verb, "--older-than", "1h", "--yes")

    assert result.exit_code == ExitCode.NOTHING_MATCHED
    assert statuses(crowd) == BEFORE


@pytest.mark.parametrize("verb", ["cancel", "purge"])
def test_saying_nothing_or_two_things_is_refused(
    project: Project, crowd: Packhorse, verb: str
) -> None:
    for options in ((), ("--all", "--queue", "default")):
        result = project.run("jobs", verb, *options, "--yes")
        assert result.exit_code == ExitCode.USAGE
        assert "say which jobs" in result.stderr
    assert project.run("jobs", "cancel", "waiting", "--all", "--yes").exit_code == ExitCode.USAGE
    assert project.run("jobs", "cancel", "waiting", "--dry-run").exit_code == ExitCode.USAGE
    assert statuses(crowd) == BEFORE


@pytest.mark.parametrize("verb", ["cancel", "purge"])
def test_many_are_asked_about_first(
    project: Project, crowd: Packhorse, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    assert project.run("jobs", verb, "--all").exit_code == ExitCode.USAGE
    monkeypatch.setattr(output, "_can_ask", lambda: True)

    result = project.run("jobs", verb, "--all", input="n\n")

    asked = "Cancel 4 jobs?" if verb == "cancel" else "Remove 1 job for good?"
    assert asked in result.stderr
    assert statuses(crowd) == BEFORE


def test_only_what_is_over_and_not_dead_is_purged(project: Project, crowd: Packhorse) -> None:
    crowd.tasks["explode"].using(job_id="dead").enqueue()
    project.run("jobs", "cancel", "elsewhere")
    crowd.run(["mail"], burst=True)

    assert project.document("jobs", "purge", "--all", "--dry-run") == {"matched": 2, "purged": 0}
    assert project.document("jobs", "purge", "--queue", "mail", "--yes")["purged"] == 1
    assert project.document("jobs", "purge", "--all", "--yes") == {"matched": 1, "purged": 1}

    left = {name: status for name, status in BEFORE.items() if name not in ("elsewhere", "done")}
    assert statuses(crowd) == {**left, "dead": "dead"}


def test_a_purge_goes_in_parts_and_one_that_was_killed_is_run_again_for_the_rest(
    project: Project, app: Packhorse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "_PURGE_BATCH", 2)
    monkeypatch.setattr(selection, "LOOK_MAX", 3)
    for number in range(7):
        app.tasks["greet"].using(job_id=f"other-{number}").enqueue("Ada")
        app.tasks["add"].using(job_id=f"meant-{number}").enqueue(number)
    app.run(burst=True)
    told: list[int] = []

    def killed(done: int, _whole: int) -> None:
        told.append(done)
        if done >= 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(selection, "show_progress", killed)
        first = project.run("jobs", "purge", "--task", "add", "--yes")
    again = project.document("jobs", "purge", "--task", "add", "--yes")

    assert first.exit_code == ExitCode.INTERRUPTED
    assert told == [1, 3, 4]  # each part looks at three jobs
    assert again == {"matched": 3, "purged": 3}
    assert statuses(app) == {f"other-{number}": "completed" for number in range(7)}


def test_no_more_are_cancelled_than_were_announced(
    project: Project, app: Packhorse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "SELECTION_MAX", 4)
    monkeypatch.setattr(selection, "_PAGE", 2)
    jobs = [app.tasks["add"].enqueue(number) for number in range(6)]

    assert project.document("jobs", "cancel", "--all", "--yes")["cancelled"] == 4
    assert [job.status() for job in jobs[:2]] == [JobStatus.QUEUED] * 2


def test_jobs_are_chosen_by_bounded_looks_at_the_store(
    project: Project, app: Packhorse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "LOOK_MAX", 2)
    oldest = app.tasks["greet"].using(job_id="one-oldest").enqueue("Ada")
    for number in range(9):
        app.tasks["add"].using(job_id=f"number-{number}").enqueue(number)

    assert project.document("jobs", "cancel", "--task", "greet", "--yes")["cancelled"] == 1
    assert oldest.status() == JobStatus.CANCELLED
    assert project.document("jobs", "show", "one-old")["id"] == oldest.id
    monkeypatch.setattr(selection, "_LOOKS_MAX", 2)
    refused = project.run("jobs", "show", "one-old")
    assert refused.exit_code == ExitCode.USAGE
    assert "in the newest 4 jobs only" in refused.stderr
    assert project.document("jobs", "show", oldest.id)["id"] == oldest.id


def test_the_shelf_of_a_dead_letter_is_a_filter(project: Project, app: Packhorse) -> None:
    app.queue("mail", dead_letter="mail_dead")
    app.tasks["explode"].using(job_id="shelved").enqueue()
    app.tasks["explode"].using(job_id="loose", queue="default").enqueue()
    app.run(burst=True)

    listed = project.document("dead", "list", "--shelf", "mail_dead")["jobs"]
    assert [job["id"] for job in listed] == ["shelved"]
    assert project.document("dead", "purge", "--shelf", "mail_dead", "--yes")["purged"] == 1
    assert statuses(app) == {"loose": "dead"}
