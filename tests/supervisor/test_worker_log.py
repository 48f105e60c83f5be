# SPDX-License-Identifier: MIT
"""The log of `packhorse worker`: whose lines are in it, their shape, and that it never blocks."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from packhorse import JobHandle
from tests.docs.pages import DOCS, blocks
from tests.supervisor.yard import PATIENCE_S, SOURCE, Yard, asked

PAGE = (DOCS / "how-to" / "logging.md").read_text(encoding="utf-8")
#: How an app that is set up so gets its logger.
LOGGERS = {
    "dictConfig": "log = logging.getLogger(__name__)",
    "structlog": "log = structlog.get_logger(__name__)",
}
LOUD = """
import logging, os, threading, warnings
from packhorse import Context, Packhorse, RetryPolicy

app = Packhorse("sqlite:///jobs.db")
log = logging.getLogger(__name__)
log.info("imported")

@app.middleware
async def watch(ctx, proceed):
    log.info("before %s", ctx.job.task)
    await proceed()

@app.task
def speak() -> None:
    log.info("spoken in a thread", extra={"order": 17})
    warnings.warn("an old way")
    thread = threading.Thread(target=lambda: {}["missing"])
    thread.start()
    thread.join()

@app.task
async def whisper() -> None:
    log.info("spoken on the loop")

@app.task(executor="process")
def call() -> None:
    log.info("spoken in a process")

@app.task(max_crashes=1)
def die() -> None:
    log.info("about to die")
    os._exit(7)

@app.task
def babble(lines: int) -> None:
    for _ in range(lines):
        log.info("x" * 500)
"""


@pytest.fixture
def loud(yard: Yard) -> Yard:
    (yard.folder / "loud.py").write_text(LOUD, encoding="utf-8")
    return yard


def submit(task: str, *arguments: object) -> str:
    """Submit as another process would; to start one takes longer than the job."""
    names: dict[str, Any] = {"__name__": "loud"}
    exec(LOUD, names)
    job: JobHandle[Any] = names[task].enqueue(*arguments)
    names["app"].close()
    return job.id


def burst(yard: Yard, *options: str) -> str:
    """Run all there is; everything on stderr."""
    process = yard.start("worker", "loud:app", "--burst", *options)
    assert process.wait(PATIENCE_S) == 0
    return yard.output(process)


def read(text: str) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in text.splitlines()]
    except ValueError as error:
        raise AssertionError(f"not all of this is JSON:\n{text}") from error


@pytest.mark.req("S4-19", "S4-22")
def test_users_own_lines_are_json_with_the_fields_of_their_job(loud: Yard) -> None:
    jobs = {task: submit(task) for task in ("speak", "whisper", "call")}

    lines = read(burst(loud))

    by_message = {line["message"]: line for line in lines}
    spoken = by_message["spoken in a thread"]
    assert (spoken["logger"], spoken["level"], spoken["order"]) == ("loud", "info", 17)
    assert (spoken["job_id"], spoken["task"], spoken["attempt"]) == (jobs["speak"], "speak", 1)
    assert spoken["trace_id"]
    assert spoken["worker"]
    assert spoken["worker_id"] == "speak"  # of a task without a contract of its own
    assert by_message["spoken on the loop"]["job_id"] == jobs["whisper"]
    assert by_message["spoken in a process"]["job_id"] == jobs["call"]
    assert by_message["before whisper"]["job_id"] == jobs["whisper"]
    assert "job_id" not in by_message["imported"]
    (warning,) = [line for line in lines if line["logger"] == "py.warnings"]
    assert "an old way" in warning["message"]
    (died,) = [line for line in lines if "was ended by an exception" in line["message"]]
    assert died["exception"].endswith("KeyError: 'missing'")


@pytest.mark.req("S4-19")
def test_the_lines_of_a_job_that_kills_its_process_are_written(loud: Yard) -> None:
    job = submit("die")

    lines = read(burst(loud))

    said = [line.get("event", line["message"]) for line in lines if line.get("job_id") == job]
    assert said == ["job.started", "before die", "about to die", "job.failed", "job.dead"]


def test_lines_for_people_are_lines_of_users_too(loud: Yard) -> None:
    submit("whisper")

    text = burst(loud, "--log-format", "console")

    assert "INFO    spoken on the loop  job=" in text


def test_a_log_that_is_not_read_holds_up_neither_jobs_nor_probes_nor_the_end(loud: Yard) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    first = [submit("babble", 8000) for _ in range(2)]
    process = subprocess.Popen(
        *([sys.executable, "-m", "packhorse", "worker", "loud:app", "--http", address],),
        cwd=loud.folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stderr=subprocess.PIPE,  # and nothing reads it
    )
    try:
        for job in [*first, submit("whisper")]:
            loud.app.job(job).result(timeout=PATIENCE_S)
        assert asked(f"http://{address}/livez")[0] == 200

        process.send_signal(signal.SIGTERM)

        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
    assert process.stderr is not None
    with process.stderr:
        text = process.stderr.read().decode()
    read(text.rpartition("\n")[0])  # the last may be cut off where the pipe was full


def test_logging_can_be_set_up_by_a_file(loud: Yard) -> None:
    document = {
        "version": 1,
        "filters": {"job": {"()": "packhorse.logs.JobFields"}},
        "formatters": {"own": {"format": "%(name)s|%(job_id)s|%(message)s"}},
        "handlers": {
            "file": {
                "class": "logging.FileHandler",
                "filename": "own.log",
                "formatter": "own",
                "filters": ["job"],
                "level": "INFO",
            }
        },
        "loggers": {"loud": {"handlers": ["file"], "level": "INFO"}},
    }
    (loud.folder / "logging.json").write_text(json.dumps(document))
    job = submit("whisper")

    text = burst(loud, "--log-config", "logging.json")

    own = (loud.folder / "own.log").read_text().splitlines()
    assert f"loud|{job}|spoken on the loop" in own
    assert "job.started" not in text


def test_the_file_that_the_page_shows_sets_logging_up(loud: Yard) -> None:
    (shown,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (loud.folder / "logging.toml").write_text(shown)
    job = submit("whisper")

    text = burst(loud, "--log-config", "logging.toml")

    lines = read((loud.folder / "worker.log").read_text())
    (spoken,) = [line for line in lines if line["message"] == "spoken on the loop"]
    assert spoken["job_id"] == job
    assert "INFO loud spoken on the loop" in text


@pytest.mark.parametrize("word", LOGGERS)
def test_logging_can_be_left_to_the_app_as_the_page_shows(loud: Yard, word: str) -> None:
    (shown,) = [each.code for each in blocks(PAGE) if each.reason and word in each.code]
    own = LOUD.replace("log = logging.getLogger(__name__)", LOGGERS[word])
    (loud.folder / "loud.py").write_text(shown + own)
    job = submit("whisper")

    lines = read(burst(loud, "--log-config", "none", "--no-banner"))

    by_message = {line["message"].partition(" in ")[0]: line for line in lines}
    spoken, ours = by_message["spoken on the loop"], by_message["whisper completed"]
    assert (spoken["job_id"], spoken["task"]) == (job, "whisper")
    assert (ours["job_id"], ours["event"]) == (job, "job.completed")


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("missing.json", None, "cannot be read"),
        ("broken.json", "{", "cannot be read"),
        ("list.json", "[]", "holds no dictionary"),
        ("wrong.json", '{"version": 2}', "Unsupported version"),
    ],
)
def test_a_file_that_cannot_set_up_logging_is_refused(
    loud: Yard, name: str, content: str | None, told: str
) -> None:
    if content is not None:
        Path(loud.folder / name).write_text(content)

    process = loud.start("worker", "loud:app", "--burst", "--log-config", name)

    assert process.wait(PATIENCE_S) == 2
    assert told in loud.output(process)
