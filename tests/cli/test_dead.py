# SPDX-License-Identifier: MIT
"""`packhorse dead`: looking at dead letters, running them again, removing them."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from packhorse import JobStatus, Packhorse
from packhorse.cli import output, selection
from packhorse.cli.exits import ExitCode
from packhorse.cli.selection import redrive_selected, select
from packhorse.stores.requests import JobFilter
from tests.cli.project import Project


@pytest.fixture
def dead(app: Packhorse) -> Packhorse:
    """An app with two dead letters on mail, one on default, and a completed job."""
    explode, add = app.tasks["explode"], app.tasks["add"]
    explode.using(job_id="d1").enqueue("first")
    explode.using(job_id="d2", tenant="acme").enqueue("second")
    explode.using(job_id="d3", queue="default").enqueue("third")
    add.using(job_id="fine").enqueue(1)
    app.run(burst=True)
    return app


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, str]]:
    """Pretend that a person sits at a terminal and types this."""

    def typed(text: str) -> dict[str, str]:
        monkeypatch.setattr(output, "_can_ask", lambda: True)
        return {"input": text}

    return typed


def ids(project: Project, *arguments: str) -> list[str]:
    return [job["id"] for job in project.document("dead", "list", *arguments)["jobs"]]


@pytest.mark.req("S2-11")
def test_dead_letters_are_listed_and_can_be_narrowed_down(
    project: Project, dead: Packhorse
) -> None:
    assert ids(project) == ["d3", "d2", "d1"]
    assert ids(project, "--queue", "mail") == ["d2", "d1"]
    assert ids(project, "--tenant", "acme") == ["d2"]
    assert ids(project, "--reason", "poison_message", "--limit", "1") == ["d3"]
    assert ids(project, "--reason", "expired") == []


@pytest.mark.parametrize("command", ["dead", "jobs"])
def test_the_traceback_of_a_dead_letter_is_shown_without_our_own_frames(
    project: Project, dead: Packhorse, command: str
) -> None:
    shown = project.run(command, "show", "d1").stdout

    assert "Traceback (most recent call last):" in shown
    assert "in explode" in shown
    assert "packhorse/worker" not in shown


@pytest.mark.req("S2-11")
def test_a_dead_letter_can_be_inspected(project: Project, dead: Packhorse) -> None:
    document = project.document("dead", "show", "d1")

    assert document["deadReason"] == "poison_message"
    assert document["error"]["message"] == "first"
    assert document["payload"] == {"why": "first"}
    assert document["queue"] == "mail"
    assert [line["status"] for line in document["history"]] == ["failed"]


def test_a_job_that_lives_is_no_dead_letter(project: Project, dead: Packhorse) -> None:
    result = project.run("dead", "show", "fine")

    assert result.exit_code == ExitCode.FAILED
    assert "job fine is completed, not dead" in result.stderr


@pytest.mark.req("S2-12")
def test_a_dead_letter_runs_again_once_the_cause_is_fixed(
    project: Project, dead: Packhorse
) -> None:
    project.write("mended.py", MENDED)

    document = project.document("dead", "redrive", "d1")
    project.finish("worker", "mended", "--burst", "--log-level", "error")

    assert document == {
        "matched": 1,
        "redriven": 1,
        "refused": 0,
        "conflict": 0,
        "unknown": 0,
    }
    assert dead.job("d1").status() is JobStatus.COMPLETED
    assert dead.job("d2").status() is JobStatus.DEAD


MENDED = """
from packhorse import Packhorse
app = Packhorse("sqlite:///jobs.db")

@app.task(queue="mail")
def explode(why: str = "no reason") -> None: ...
"""


def test_redriving_by_id_leaves_living_jobs_alone(project: Project, dead: Packhorse) -> None:
    result = project.run("dead", "redrive", "d1", "fine", "unknown")

    assert result.exit_code == ExitCode.NOTHING_MATCHED
    assert result.stdout == "matched 1, redriven 1, refused 1, conflict 0, unknown 1\n"
    assert "fine  is completed, not dead" in result.stderr
    assert dead.job("fine").status() is JobStatus.COMPLETED
    assert dead.job("d1").status() is JobStatus.QUEUED


@pytest.mark.req("S2-12")
def test_many_are_redriven_after_a_yes(
    project: Project, dead: Packhorse, answer: Callable[[str], dict[str, str]]
) -> None:
    result = project.run("dead", "redrive", "--queue", "mail", **answer("y\n"))

    assert result.exit_code == 0
    assert "Run 2 dead letters again?" in result.stderr
    assert result.stdout == "matched 2, redriven 2, refused 0, conflict 0, unknown 0\n"
    assert ids(project) == ["d3"]


@pytest.mark.parametrize("command", ["redrive", "purge"])
def test_a_no_changes_nothing(
    project: Project, dead: Packhorse, command: str, answer: Callable[[str], dict[str, str]]
) -> None:
    result = project.run("dead", command, "--all", **answer("n\n"))

    assert result.exit_code == ExitCode.FAILED
    assert "Nothing was changed." in result.stderr
    assert len(ids(project)) == 3


class CtrlC(io.BytesIO):
    """A terminal at which a person presses Ctrl-C."""

    def read1(self, size: int | None = -1, /) -> bytes:
        raise KeyboardInterrupt


@pytest.mark.parametrize("command", ["redrive", "purge"])
def test_an_interrupt_at_the_question_ends_with_130(
    project: Project, dead: Packhorse, command: str, answer: Callable[[str], dict[str, str]]
) -> None:
    answer("")

    result = project.run("dead", command, "--all", input=CtrlC())

    assert result.exit_code == ExitCode.INTERRUPTED
    assert result.stderr.endswith("\nNothing was changed.\nInterrupted.\n")
    assert len(ids(project)) == 3


def test_the_end_of_input_at_the_question_is_a_no(
    project: Project, dead: Packhorse, answer: Callable[[str], dict[str, str]]
) -> None:
    result = project.run("dead", "purge", "--all", **answer(""))

    assert result.exit_code == ExitCode.FAILED
    assert len(ids(project)) == 3


@pytest.mark.parametrize("command", ["redrive", "purge"])
def test_without_a_terminal_yes_must_be_said(
    project: Project, dead: Packhorse, command: str
) -> None:
    result = project.run("dead", command, "--all")

    assert result.exit_code == ExitCode.USAGE
    assert "3 dead letters" in result.stderr
    assert "add --yes" in result.stderr
    assert len(ids(project)) == 3


@pytest.mark.parametrize("command", ["redrive", "purge"])
def test_a_dry_run_counts_and_changes_nothing(
    project: Project, dead: Packhorse, command: str
) -> None:
    document = project.document("dead", command, "--tenant", "acme", "--dry-run")

    assert document["matched"] == 1
    assert len(ids(project)) == 3


def test_a_dry_run_of_named_jobs_changes_nothing_and_tells_what_would_be_refused(
    project: Project, dead: Packhorse
) -> None:
    document = project.document("dead", "redrive", "d1", "d2", "--dry-run")
    refused = project.run("dead", "redrive", "d1", "fine", "unknown", "--dry-run")

    assert document == {"matched": 2, "redriven": 0, "refused": 0, "conflict": 0, "unknown": 0}
    assert refused.exit_code == ExitCode.NOTHING_MATCHED
    assert refused.stdout == "matched 1, redriven 0, refused 1, conflict 0, unknown 1\n"
    assert ids(project) == ["d3", "d2", "d1"]


def test_purging_removes_what_was_meant_and_nothing_else(project: Project, dead: Packhorse) -> None:
    document = project.document("dead", "purge", "--queue", "mail", "--yes")

    assert document == {"matched": 2, "purged": 2}
    assert ids(project) == ["d3"]
    assert dead.job("fine").status() is JobStatus.COMPLETED


@pytest.mark.parametrize(
    "arguments",
    [
        ("redrive",),
        ("purge",),
        ("redrive", "--all", "--queue", "mail"),
        ("redrive", "d1", "--queue", "mail"),
        ("redrive", "d1", "--all"),
    ],
)
def test_which_ones_must_be_said_and_only_once(
    project: Project, dead: Packhorse, arguments: tuple[str, ...]
) -> None:
    result = project.run("dead", *arguments, "--yes")

    assert result.exit_code == ExitCode.USAGE
    assert len(ids(project)) == 3


@pytest.mark.parametrize("command", ["redrive", "purge"])
def test_no_match_ends_with_7(project: Project, dead: Packhorse, command: str) -> None:
    result = project.run("dead", command, "--queue", "nowhere", "--yes")

    assert result.exit_code == ExitCode.NOTHING_MATCHED
    assert "no dead letter matches" in result.stderr


def test_more_than_a_page_is_redriven_page_by_page(
    dead: Packhorse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "_PAGE", 1)

    chosen = select(dead.store, JobFilter(), (JobStatus.DEAD,), "dead letter")
    answers = redrive_selected(dead.store, chosen, reset_budget=False)

    assert (chosen.number, chosen.more) == (3, False)
    assert answers == {"redriven": 3}


def test_no_more_are_touched_than_were_announced(
    dead: Packhorse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "_PAGE", 1)
    monkeypatch.setattr(selection, "SELECTION_MAX", 2)

    chosen = select(dead.store, JobFilter(), (JobStatus.DEAD,), "dead letter")
    redrive_selected(dead.store, chosen, reset_budget=False)

    assert str(chosen) == "the first 2 dead letters"
    assert len(dead.insights.dead_letters().jobs) == 1
