# SPDX-License-Identifier: MIT
"""A store whose jobs were carried to another one, on every store: nothing runs there twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from packhorse import CoroutineTask, Packhorse, QueueClosed, StoreCopied
from packhorse.stores.transfer import Copied

NewApp = Callable[[], Packhorse]
COPIED = Copied("postgresql://app@db/jobs", 1_700_000_000_000_000)


def work_of(app: Packhorse, ran: list[int]) -> CoroutineTask[..., None]:
    @app.task
    async def work() -> None:
        ran.append(1)

    return work


async def test_workers_consumers_and_submits_refuse_a_copied_store(new_app: NewApp) -> None:
    ran: list[int] = []
    before, app = new_app(), new_app()
    job = await work_of(before, ran).aenqueue()
    work = work_of(app, ran)
    await before.store.arun(before.store.transfer.mark(COPIED))

    with pytest.raises(StoreCopied, match=r"copied to postgresql://app@db/jobs.*copy --undo"):
        await work.aenqueue()
    with pytest.raises(StoreCopied):
        await asyncio.to_thread(work.enqueue)
    with pytest.raises(StoreCopied):
        await app.arun(burst=True)
    with pytest.raises(StoreCopied):
        await app.consumer().fetch(timeout=0.1)
    assert (ran, str(await app.job(job.id).astatus())) == ([], "queued")

    await app.store.arun(app.store.transfer.mark(None))
    await app.arun(burst=True)
    assert ran == [1]


async def test_a_producer_that_was_running_through_the_copy_is_refused(new_app: NewApp) -> None:
    producer, operator = new_app(), new_app()
    work = work_of(producer, [])
    await work.aenqueue()
    await operator.store.arun(operator.store.transfer.mark(COPIED))

    for submit in (
        *(work.aenqueue, work.using(tenant="acme").aenqueue, work.using(delay="1s").aenqueue),
        lambda: asyncio.to_thread(work.enqueue),
        lambda: producer.aenqueue_many([work.call()] * 3),
    ):
        with pytest.raises(StoreCopied, match=r"copied to postgresql://app@db/jobs.*copy --undo"):
            await submit()
    assert await producer.adepth("default") == 1

    await operator.store.arun(operator.store.transfer.mark(None))
    await work.aenqueue()
    assert await producer.adepth("default") == 2


async def test_a_closed_queue_of_a_store_in_use_is_told_as_that(new_app: NewApp) -> None:
    app = new_app()
    work = work_of(app, [])
    app.close_queue("default")

    with pytest.raises(QueueClosed):
        await work.aenqueue()
