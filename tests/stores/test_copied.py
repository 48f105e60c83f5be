# SPDX-License-Identifier: MIT
"""A store whose jobs were carried to another one, on every store: nothing runs there twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from packhorse import CoroutineTask, Packhorse, StoreCopied
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
