# SPDX-License-Identifier: MIT
"""`tx=`: the job is there if the user's transaction commits, and never was if it rolls back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager

import pytest

from packhorse import JobHandle, JobStatus
from packhorse.client import submission
from packhorse.errors import JobNotFound
from tests.transactions.support import ASYNC, SYNC, Orders, Transaction

Sync = Callable[[Orders], AbstractContextManager[Transaction]]
Async = Callable[[Orders], AbstractAsyncContextManager[Transaction]]

every_library = pytest.mark.parametrize("open_tx", SYNC, ids=lambda each: each.__name__)
every_async_library = pytest.mark.parametrize("open_tx", ASYNC, ids=lambda each: each.__name__)


class Undone(Exception):
    """The user's own."""


@every_library
def test_a_job_commits_with_the_rows_of_its_transaction(orders: Orders, open_tx: Sync) -> None:
    with open_tx(orders) as open_one:
        open_one.execute(orders.insert("a"))
        job = orders.send.using(tx=open_one.tx).enqueue("a")

        assert job.deduplicated is None
        with pytest.raises(JobNotFound):
            job.status()

    assert job.status() is JobStatus.QUEUED
    assert job.deduplicated is False
    assert orders.names() == ["a"]
    assert orders.run() == ["a"]
    assert job.result(timeout=10) == "A"


@every_library
def test_a_job_is_rolled_back_with_the_rows_of_its_transaction(
    orders: Orders, open_tx: Sync
) -> None:
    jobs: list[JobHandle[str]] = []
    with contextlib.suppress(Undone), open_tx(orders) as open_one:
        open_one.execute(orders.insert("a"))
        jobs.append(orders.send.using(tx=open_one.tx).enqueue("a"))
        raise Undone

    with pytest.raises(JobNotFound):
        jobs[0].status()
    assert orders.names() == []
    assert orders.run() == []


@every_library
def test_a_job_is_rolled_back_with_its_savepoint(orders: Orders, open_tx: Sync) -> None:
    with open_tx(orders) as open_one:
        kept = orders.send.using(tx=open_one.tx).enqueue("kept")
        with contextlib.suppress(Undone), open_one.savepoint():
            open_one.execute(orders.insert("gone"))
            gone = orders.send.using(tx=open_one.tx).enqueue("gone")
            raise Undone
        open_one.execute(orders.insert("kept"))

    assert kept.status() is JobStatus.QUEUED
    with pytest.raises(JobNotFound):
        gone.status()
    assert (orders.names(), orders.run()) == (["kept"], ["kept"])


@every_library
def test_many_jobs_commit_together_and_keep_their_order(orders: Orders, open_tx: Sync) -> None:
    with open_tx(orders) as open_one:
        orders.send.enqueue_many([{"order": "a"}, {"order": "b"}], tx=open_one.tx)
        orders.app.enqueue_many([orders.send.call("c"), orders.send.call("d")], tx=open_one.tx)

    assert orders.run() == ["a", "b", "c", "d"]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few jobs in one part of a bulk submit, and in one that is all or none."""
    monkeypatch.setattr(submission, "PART_JOBS_MAX", 2)
    monkeypatch.setattr(submission, "ATOMIC_JOBS_MAX", 2)


@pytest.mark.usefixtures("small_parts")
def test_a_transaction_takes_more_jobs_than_one_atomic_submit(orders: Orders) -> None:
    with orders.driver() as open_one:
        orders.send.enqueue_many([{"order": name} for name in "abc"], tx=open_one.tx)

    assert orders.run() == ["a", "b", "c"]


@pytest.mark.usefixtures("small_parts")
async def test_an_async_transaction_takes_more_jobs_than_one_atomic_submit(orders: Orders) -> None:
    async with orders.sqlalchemy_connection_async() as open_one:
        await orders.send.aenqueue_many([{"order": name} for name in "abc"], tx=open_one.tx)

    await orders.app.arun(burst=True, concurrency=1)
    assert orders.ran == ["a", "b", "c"]


@every_library
def test_a_cancel_commits_with_the_transaction(orders: Orders, open_tx: Sync) -> None:
    job, other = orders.send.enqueue("a"), orders.send.enqueue("b")
    with open_tx(orders) as open_one:
        assert job.cancel(tx=open_one.tx)
    with contextlib.suppress(Undone), open_tx(orders) as open_one:
        other.cancel(tx=open_one.tx)
        raise Undone

    assert orders.run() == ["b"]
    assert job.status() is JobStatus.CANCELLED


@every_library
def test_a_job_and_its_cancel_may_be_of_one_transaction(orders: Orders, open_tx: Sync) -> None:
    with open_tx(orders) as open_one:
        job = orders.send.using(tx=open_one.tx).enqueue("a")
        job.cancel(tx=open_one.tx)

    assert job.status() is JobStatus.CANCELLED


def _serves(open_tx: Async, orders: Orders) -> bool:
    return not orders.is_sqlite or "sqlalchemy" in getattr(open_tx, "__name__", "")


@every_async_library
async def test_a_job_commits_with_an_async_transaction(orders: Orders, open_tx: Async) -> None:
    if not _serves(open_tx, orders):
        open_tx = Orders.sqlalchemy_session_async
    async with open_tx(orders) as open_one:
        await open_one.execute(orders.insert("a"))
        job = await orders.send.using(tx=open_one.tx).aenqueue("a")
        await orders.send.aenqueue_many([{"order": "b"}, {"order": "c"}], tx=open_one.tx)
        unwanted = await orders.send.using(tx=open_one.tx).aenqueue("d")
        await unwanted.acancel(tx=open_one.tx)

    assert await job.astatus() is JobStatus.QUEUED
    await orders.app.arun(burst=True, concurrency=1)
    assert orders.ran == ["a", "b", "c"]
    assert orders.names() == ["a"]


@every_async_library
async def test_a_job_is_rolled_back_with_an_async_transaction(
    orders: Orders, open_tx: Async
) -> None:
    if not _serves(open_tx, orders):
        open_tx = Orders.sqlalchemy_connection_async
    jobs: list[JobHandle[str]] = []
    with contextlib.suppress(Undone):
        async with open_tx(orders) as open_one:
            await open_one.execute(orders.insert("a"))
            jobs.append(await orders.send.using(tx=open_one.tx).aenqueue("a"))
            raise Undone

    with pytest.raises(JobNotFound):
        await jobs[0].astatus()
    assert orders.names() == []
