# SPDX-License-Identifier: MIT
"""SQLite counts jobs page by page, and sorts none of them all at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from packhorse import Packhorse, RetryPolicy
from packhorse.core.job import JobStatus
from packhorse.stores.sqlite import dialect
from packhorse.stores.sqlite.connection import SqliteSettings, connect
from packhorse.stores.sqlite.statements import sql


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Packhorse]:
    """Jobs of every end in two queues, and some that wait."""
    app = Packhorse(f"sqlite:///{tmp_path}/jobs.db?synchronous=OFF")

    @app.task(retry=RetryPolicy(max_retries=0))
    async def divide(number: int) -> float:
        return 1 / number

    for queue in ("one", "two"):
        app.enqueue_many([divide.call(number).using(queue=queue) for number in (0, 1, 2, 0, 3, 4)])
        divide.using(queue=queue, delay="1h").enqueue(1).cancel()
    app.run(burst=True, queues=["one", "two"])
    divide.using(queue="one", delay="1h").enqueue(1)
    app.enqueue_many([divide.call(1).using(queue="three")] * 3)
    yield app
    app.close()


@pytest.mark.parametrize("page", [1, 2, 3, 1_000])
def test_pages_add_up_to_all_jobs(
    app: Packhorse, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialect, "_PAGE", page)

    counted = app.store.run(app.store.inspection.counts())

    ended = {JobStatus.COMPLETED: 4, JobStatus.DEAD: 2, JobStatus.CANCELLED: 1}
    assert {each.queue: Counter(each.by_status) for each in counted} == {
        "one": Counter({**ended, JobStatus.PENDING: 1}),
        "two": Counter(ended),
        "three": Counter({JobStatus.QUEUED: 3}),
    }


@pytest.mark.parametrize("name", ["counts_stand", "counts_kept", "counts_page_end"])
def test_what_reads_more_than_a_page_sorts_nothing(
    app: Packhorse, tmp_path: Path, name: str
) -> None:
    first = {"expires_us": -1, "queue": "", "status": -1, "seq": -1, "size": 10}
    first |= {"lane": 0, "most": -1}
    settings = SqliteSettings.from_url(app.store.label)
    with closing(connect(settings)) as connection:
        plan = connection.execute(f"explain query plan {sql(name)}", first).fetchall()

    assert [detail for *_, detail in plan if "TEMP B-TREE" in detail] == []
