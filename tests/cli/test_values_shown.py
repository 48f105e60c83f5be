# SPDX-License-Identifier: MIT
"""No command shows a secret that stands in arguments, results, errors, steps or notes."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from tests.cli.project import Project
from tests.cli.test_reference_page import COMMANDS

SECRET = "hunter2-hunter2"

TASKS = """
from packhorse import Context, Packhorse, RetryPolicy

app = Packhorse("sqlite:///jobs.db")

@app.task
def login(ctx: Context, password: str) -> dict[str, str]:
    ctx.log.info("signing in with password=%s", password)
    ctx.step("sign in", lambda: {"token": password})
    ctx.progress(1, 2, f"token={password}")
    if ctx.wait_for("go", timeout=60)["secret"] == "stop":
        raise ValueError(f"refused: password={password}")
    return {"api_key": password}

@app.task(retry=RetryPolicy(max_retries=0))
def fail(password: str) -> None:
    raise ValueError(f"refused: password={password}")
"""
#: What each command is given; a command that is not here shows nothing of a job's values.
GIVEN = {
    "packhorse jobs list": (),
    "packhorse jobs show": ("{id}",),
    "packhorse jobs logs": ("{id}",),
    "packhorse dead list": (),
    "packhorse dead show": ("{id}",),
    "packhorse explain": ("{id}",),
    "packhorse jobs signal": ("{id}", "go", f'{{"secret": "{SECRET}"}}'),
    "packhorse jobs approve": ("{id}", "--by", "ada", "--note", SECRET),
    "packhorse jobs decline": ("{id}", "--by", "ada", "--note", SECRET),
    "packhorse jobs retry": ("{id}",),
    "packhorse stats": (),
    "packhorse doctor": (),
    "packhorse queues list": (),
}


@pytest.fixture
def jobs(project: Project) -> Iterator[dict[str, str]]:
    project.write("jobs.py", TASKS)
    app = project.app()
    waiting = app.tasks["login"].enqueue(SECRET)
    done = app.tasks["login"].enqueue(SECRET)
    dead = app.tasks["fail"].enqueue(SECRET)
    done.signal("go", {"secret": SECRET})
    app.run(burst=True)
    yield {"waiting": waiting.id, "done": done.id, "dead": dead.id}
    app.close()


@pytest.mark.req("S3-40")
@pytest.mark.parametrize("words", GIVEN)
def test_no_command_shows_a_secret(project: Project, jobs: dict[str, str], words: str) -> None:
    shown = ""
    takes_json = any("--json" in option.opts for option in COMMANDS[words].params)
    for job_id in jobs.values():
        given = [*words.split()[1:], *(part.replace("{id}", job_id) for part in GIVEN[words])]
        shown += project.run(*given).output
        shown += project.run(*given, "--json").output if takes_json else ""

    assert SECRET not in shown
    assert shown


@pytest.mark.parametrize("words", ["jobs show", "dead show"])
def test_values_are_shown_to_who_asks(project: Project, jobs: dict[str, str], words: str) -> None:
    job_id = jobs["dead"]

    hidden = project.document(*words.split(), job_id)
    shown = project.document(*words.split(), job_id, "--show-values")

    assert hidden["payload"] == {"password": "[redacted]"}
    assert hidden["error"]["message"] == "refused: password=[redacted]"
    assert shown["payload"] == {"password": SECRET}
    assert SECRET in project.run(*words.split(), job_id, "--show-values").output


@pytest.mark.usefixtures("jobs")
def test_a_result_that_is_waited_for_is_masked_unless_asked(project: Project) -> None:
    app = project.app()
    job = app.tasks["login"].using(job_id="one").enqueue(SECRET)
    job.signal("go", {"secret": "x"})
    app.run(burst=True)
    app.close()
    again = ("enqueue", "login", SECRET, "--id", "one", "--wait")

    assert project.run(*again).stdout == '{"api_key":"[redacted]"}\n'
    assert project.run(*again, "--show-values").stdout == f'{{"api_key":"{SECRET}"}}\n'


def test_every_command_that_takes_a_job_is_in_the_table() -> None:
    named = {
        words
        for words, command in COMMANDS.items()
        for each in command.params
        if isinstance(each, click.Argument) and each.name == "job_id"
    }

    assert named <= set(GIVEN)
