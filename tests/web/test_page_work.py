# SPDX-License-Identifier: MIT
"""No page and no part of a purge makes the store go through all its jobs: more are no more work."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
import redis

from packhorse import Packhorse, RetryPolicy, Task
from packhorse.core.job import JobStatus
from packhorse.stores.requests import JobFilter
from packhorse.stores.sql.rows import Lane
from packhorse.web import web_app
from packhorse.web.page_table import PAGES
from tests.servers.redis import redis_url
from tests.web.support import Web, token

#: What few jobs fit, or none.
FILTERED: Final = (
    *("/jobs?task=none", "/jobs?tenant=none", "/jobs?tag=none", "/jobs?createdBy=none"),
    *("/jobs?queue=none", "/jobs?status=cancelled", "/jobs?status=pending", "/jobs?status=queued"),
    *("/jobs?status=processing", "/dead?tenant=none", "/dead?task=none", "/dead?tag=none"),
    *("/dead?reason=rejected", "/operations/new?action=redrive&error=none"),
    *("/operations/new?action=cancel&task=none", "/failures?after=999999999"),
)
#: As those, of what is to be removed.
PURGED: Final = (
    *(JobFilter(task="none"), JobFilter(dead_letter="none")),
    JobFilter(task="none", statuses=(JobStatus.DEAD,)),
)
#: Redis reads one thing more of each job that is over for it, and of none that waits.
TAGGED: Final = JobFilter(tag="none")
PATHS: Final = (*(page.path for page in PAGES if "{" not in page.path), *FILTERED)
#: Instructions of SQLite between two counts.
_PART: Final = 100
#: Copies of each job before, and then: more of each kind than any page looks at.
_BEFORE, _THEN = 180, 400


def _tasks(app: Packhorse) -> tuple[Task[..., Any], Task[..., Any]]:
    @app.task
    async def work(number: int) -> int:
        return number

    @app.task(retry=RetryPolicy(max_retries=0))
    async def fail(number: int) -> None:
        raise ValueError(number)

    return work, fail


async def _fill(app: Packhorse, waiting: int, *tasks: Task[..., Any]) -> None:
    """Some jobs that completed, some dead, and others that wait."""
    work, _ = tasks
    await app.aenqueue_many([task.call(number) for task in tasks for number in range(60)])
    await app.arun(burst=True)
    await app.aenqueue_many([work.call(number) for number in range(waiting)])


async def _worked(
    app: Packhorse,
    paths: tuple[str, ...],
    work: Callable[[], int],
    purged: tuple[JobFilter, ...] = PURGED,
) -> dict[str, int]:
    """What each page, asked by a new web application, and each part of a purge cost the store."""
    web = Web(app, token=token(app, "admin"))
    spent = {}
    for path in paths:
        web.served = web_app(app)
        before = work()
        assert (await web.ask("GET", path)).status == 200, path
        spent[path] = work() - before
    for chosen in purged:
        before = work()
        await app.store.arun(app.store.jobs.delete(chosen, limit=10))
        spent[str(chosen)] = work() - before
    return spent


def _copy(file: Path, copies: range) -> None:
    """Rows of jobs once more, with numbers and ids of their own."""
    with closing(sqlite3.connect(file)) as connection:
        names = [row[1] for row in connection.execute("pragma table_info(packhorse_jobs)")]
        for copy in copies:
            changed = {
                "seq": f"seq + {copy} * 1000",
                "id": f"id || '-{copy}'",
                "rank": f"rank + iif(lane = {int(Lane.DEAD)}, {copy} * 1000, 0)",
            }
            values = ", ".join(changed.get(name, name) for name in names)
            connection.execute(
                f"insert into packhorse_jobs ({', '.join(names)}) "
                f"select {values} from packhorse_jobs where seq < 1000"
            )
        connection.commit()


async def test_three_times_as_many_jobs_are_no_more_work_for_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = 0
    opened = sqlite3.connect

    def count() -> None:
        nonlocal parts
        parts += 1

    def connect(*given: Any, **named: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = opened(*given, **named)
        connection.set_progress_handler(count, _PART)
        return connection

    file = tmp_path / "jobs.db"
    app = Packhorse(f"sqlite:///{file}?synchronous=OFF")
    await _fill(app, 60, *_tasks(app))
    await app.aclose()
    found = []
    for copies in (range(1, _BEFORE), range(_BEFORE, _THEN)):
        _copy(file, copies)
        with monkeypatch.context() as patched:
            patched.setattr(sqlite3, "connect", connect)
            app = Packhorse(f"sqlite:///{file}")
            [last] = (
                await app.insights.ajobs(JobFilter(statuses=(JobStatus.QUEUED,)), limit=1)
            ).jobs
            paths = (*PATHS, f"/jobs/{last.id}")
            found.append(await _worked(app, paths, lambda: parts, (*PURGED, TAGGED)))
            await app.aclose()

    assert _grown(*found) == {}


def _grown(before: dict[str, int], then: dict[str, int]) -> dict[str, tuple[int, int]]:
    """The pages that became more work; that of a job is of another one then."""
    pairs = zip(before.items(), then.values(), strict=True)
    return {path: (one, two) for (path, one), two in pairs if two > 1.2 * one + 200}


async def test_twice_as_many_jobs_are_no_more_work_for_redis() -> None:
    app = Packhorse(f"{redis_url()}?namespace=page-work")
    tasks, found = _tasks(app), []
    with closing(redis.Redis.from_url(redis_url())) as server:

        def work() -> int:
            """Commands the server has run, those of scripts too."""
            told: Any = server.info("commandstats")
            return sum(each["calls"] for each in told.values())

        for _ in range(2):
            await _fill(app, 6_000, *tasks)
            found.append(await _worked(app, PATHS, work))
    await app.aclose()

    assert _grown(*found) == {}
