# SPDX-License-Identifier: MIT
"""Tasks of included modules, with real worker processes on every store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from packhorse import Packhorse, Unique
from packhorse.stores.requests import JobFilter
from tests.supervisor.yard import PATIENCE_S, Yard
from tests.support.twins import ordinarily_on

pytestmark = pytest.mark.parametrize("store", ordinarily_on("sqlite"))

APP: Final = """
import os
from packhorse import Packhorse

app = Packhorse(os.environ["YARD_URL"], include=["mail"])
"""
MAIL: Final = """
from jobs import app

@app.task(name="mail.send", concurrency=1, concurrency_key="to", rate_limit=(100, "1s"))
async def send(to: str) -> str:
    return to
"""
REPORTS: Final = """
from packhorse import Router, Unique

router = Router(prefix="reports.")

@router.task(executor="process", unique=Unique())
def total(numbers: list[int]) -> int:
    return sum(numbers)
"""


@pytest.fixture
def source() -> str:
    return APP


@pytest.fixture
def producer(yard: Yard, store_url: str) -> Iterator[Packhorse]:
    """Another program's app, which knows the tasks by their names."""
    app = Packhorse(store_url)
    app.task(name="mail.send", concurrency=1, concurrency_key="to")(lambda to: to)
    app.task(name="reports.total", unique=Unique())(lambda numbers: 0)
    yield app
    app.close()


def test_dotted_tasks_of_included_modules_run_in_workers_and_their_processes(
    yard: Yard, producer: Packhorse
) -> None:
    (yard.folder / "mail.py").write_text(MAIL, encoding="utf-8")
    (yard.folder / "reports.py").write_text(REPORTS, encoding="utf-8")
    sent = producer.tasks["mail.send"].enqueue("a")
    added = producer.tasks["reports.total"].enqueue([1, 2])

    worker = yard.start(
        *("worker", "-A", "jobs", "--include", "reports", "--burst", "--process-slots", "1"),
        *("--log-level", "error"),
    )

    assert worker.wait(PATIENCE_S) == 0, yard.output(worker)
    assert (sent.result(timeout=1), added.result(timeout=1)) == ("a", 3)
    assert [job.id for job in producer.insights.jobs(JobFilter(task="mail.send")).jobs] == [sent.id]
