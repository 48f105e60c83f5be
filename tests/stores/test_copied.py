# SPDX-License-Identifier: MIT
"""A store whose jobs were carried to another one, on every store: nothing runs there twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from packhorse import CoroutineTask, Packhorse, QueueClosed, StoreCopied
from packhorse.events import StoreRecovered, StoreTrouble
from packhorse.stores.protocol import Store
from packhorse.stores.transfer import Copied

NewApp = Callable[[], Packhorse]
PATIENCE_S = 20.0
COPIED = Copied("postgresql://app@db/jobs", 1_700_000_000_000_000)
UNDER_WAY = Copied(COPIED.to, COPIED.at_us, under_way=True)


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


async def test_a_store_whose_copy_is_not_over_says_so_and_what_to_do(new_app: NewApp) -> None:
    producer, operator = new_app(), new_app()
    work = work_of(producer, [])
    await operator.store.arun(operator.store.transfer.mark(UNDER_WAY))

    with pytest.raises(StoreCopied) as caught:
        await work.aenqueue()
    said = str(caught.value)
    assert "are being copied to postgresql://app@db/jobs, since 2023-11-14 22:13:20 UTC" in said
    assert "run the copy again to go on" in said
    assert f"'packhorse copy --undo --from {producer.store.label}'" in said
    assert "where they run" not in said
    assert caught.value.to == COPIED.to
    await operator.store.arun(operator.store.transfer.mark(None))


async def test_a_worker_that_was_running_through_the_copy_claims_nothing_more(
    new_app: NewApp,
) -> None:
    ran: list[int] = []
    app, operator = new_app(), new_app()
    work, store = work_of(app, ran), operator.store
    troubles: asyncio.Queue[str] = asyncio.Queue()
    app.on(StoreTrouble)(lambda event: troubles.put_nowait(event.error_message))
    app.on(StoreRecovered)(lambda _: troubles.put_nowait(f"recovered after {len(ran)}"))
    await work.aenqueue()
    await app.apause("default")
    worker = asyncio.create_task(app.arun(lease="1s"))
    try:
        await _renewed(store, times=1)
        await store.arun(store.transfer.mark(COPIED))
        told = await asyncio.wait_for(troubles.get(), PATIENCE_S)
        assert "copied to postgresql://app@db/jobs" in told
        assert "copy --undo" in told
        await app.aresume("default")
        await _renewed(store, times=3)  # each of them lets the worker look for jobs
        assert ran == []

        await store.arun(store.transfer.mark(None))
        assert await asyncio.wait_for(troubles.get(), PATIENCE_S) == "recovered after 0"
        while not ran:
            await _renewed(store, times=1)
    finally:
        worker.cancel()
        await asyncio.wait({worker})


async def test_a_consumer_that_was_open_through_the_copy_fetches_nothing_more(
    new_app: NewApp,
) -> None:
    app, operator = new_app(), new_app()
    store = operator.store
    troubles: asyncio.Queue[str] = asyncio.Queue()
    app.on(StoreTrouble)(lambda event: troubles.put_nowait(event.error_message))
    app.on(StoreRecovered)(lambda _: troubles.put_nowait("recovered"))
    job = await work_of(app, []).aenqueue()
    await app.apause("default")
    async with app.consumer(lease="1s") as consumer:
        assert await consumer.fetch(timeout=0.1) is None
        await store.arun(store.transfer.mark(COPIED))
        assert "copy --undo" in await asyncio.wait_for(troubles.get(), PATIENCE_S)
        await app.aresume("default")
        assert await consumer.fetch(timeout=0.5) is None

        await store.arun(store.transfer.mark(None))
        assert await asyncio.wait_for(troubles.get(), PATIENCE_S) == "recovered"
        fetched = await consumer.fetch(timeout=PATIENCE_S)
        assert fetched is not None
        assert fetched.id == job.id


async def _renewed(store: Store, *, times: int) -> None:
    """Wait until the lease of the only worker was renewed so often."""
    seen: set[int] = set()
    async with asyncio.timeout(PATIENCE_S):
        while len(seen) <= times:
            workers = await store.arun(store.leases.workers())
            seen.update(worker.renewed_us for worker in workers)
            await asyncio.sleep(0.05)


async def test_a_closed_queue_of_a_store_in_use_is_told_as_that(new_app: NewApp) -> None:
    app = new_app()
    work = work_of(app, [])
    app.close_queue("default")

    with pytest.raises(QueueClosed):
        await work.aenqueue()
