# SPDX-License-Identifier: MIT
"""Steps of jobs that run beside each other share a write, and each is answered for itself."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from packhorse import Context, PayloadError
from packhorse.core.job import Job, JobStatus
from packhorse.core.policies.attachments import VALUE_BYTES_MAX, Attaching
from packhorse.errors import StoreUnavailable
from packhorse.runtime.worker.attaching import _HALVED_MIN, AttachmentWriter
from tests.worker.support import PATIENCE_S, Yard

_JOBS: Final = 8


class Faults:
    """Counts the verbs of a store; the first `attach` may have to wait, or fail."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.away = 0
        self.asked = threading.Event()  # a thread is about to write
        self.may_write = threading.Event()
        self.may_write.set()

    def __call__(self, verb: str, moment: str) -> None:
        if moment != "before" or verb != "attach":
            return
        self.calls[verb] += 1
        self.asked.set()
        assert self.may_write.wait(PATIENCE_S)
        if self.away:
            self.away -= 1
            raise StoreUnavailable("not now")


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def yard(faults: Faults) -> Yard:
    return Yard(faults)


def _held(yard: Yard, count: int) -> list[Job]:
    for _ in range(count):
        yard.submit("work")
    return [yard.claim_by_hand("ann", "work") for _ in range(count)]


def _kept(yard: Yard, job: Job) -> dict[str, bytes]:
    found = yard.do(yard.store.attachments.attachments(job.id))
    assert found is not None
    return found.values


async def test_steps_of_coroutines_share_writes(yard: Yard, faults: Faults) -> None:
    together = asyncio.Barrier(_JOBS)

    async def work(ctx: Context) -> None:
        for name in ("first", "second"):
            async with asyncio.timeout(PATIENCE_S):
                await together.wait()
            await ctx.astep(name, asyncio.sleep, 0)

    yard.task(work)
    jobs = [yard.submit("work") for _ in range(_JOBS)]
    await yard.burst(concurrency=_JOBS)

    assert {yard.status(job_id) for job_id in jobs} == {JobStatus.COMPLETED}
    assert faults.calls["attach"] == 2


@pytest.mark.parametrize(("apart", "writes"), [(True, 2), (False, 1)])
async def test_where_another_process_writes_a_half_goes_first(
    yard: Yard, faults: Faults, *, apart: bool, writes: int
) -> None:
    yard.store.works_apart = apart
    writer = AttachmentWriter(yard.store)
    kept = [Attaching(job.id, job.fence, {"a": b"1"}) for job in _held(yard, _HALVED_MIN)]

    assert all(await asyncio.gather(*map(writer.akeep, kept)))

    assert faults.calls["attach"] == writes


async def test_steps_of_threads_share_writes(yard: Yard, faults: Faults) -> None:
    jobs = _held(yard, _JOBS)
    writer = AttachmentWriter(yard.store)
    faults.may_write.clear()

    with ThreadPoolExecutor(_JOBS) as threads:
        first = threads.submit(writer.keep, Attaching(jobs[0].id, jobs[0].fence, {"a": b"1"}))
        await asyncio.to_thread(faults.asked.wait, PATIENCE_S)
        others = [
            threads.submit(writer.keep, Attaching(job.id, job.fence, {"a": b"1"}))
            for job in jobs[1:]
        ]
        async with asyncio.timeout(PATIENCE_S):
            while len(writer._of_threads) < len(others):
                await asyncio.sleep(0.001)
        faults.may_write.set()
        assert all(each.result(PATIENCE_S) for each in (first, *others))

    assert faults.calls["attach"] == 2
    assert all(_kept(yard, job) == {"a": b"1"} for job in jobs)


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_what_is_wrong_with_one_is_told_to_no_other(yard: Yard, kind: str) -> None:
    held, large, stale, same = _held(yard, 4)
    writer = AttachmentWriter(yard.store)
    asked = [
        Attaching(held.id, held.fence, {"a": b"1"}),
        Attaching(large.id, large.fence, {"a": b"x" * (VALUE_BYTES_MAX + 1)}),
        Attaching(stale.id, stale.fence + 1, {"a": b"1"}),
        Attaching(same.id, same.fence, {"a": b"1"}),
        Attaching(same.id, same.fence, {"a": b"2", "b": b"2"}),  # the later value wins
    ]

    def keep(one: Attaching) -> asyncio.Future[bool]:
        work = writer.akeep(one) if kind == "coroutine" else asyncio.to_thread(writer.keep, one)
        return asyncio.ensure_future(work)

    first, refused, *others = await asyncio.gather(*map(keep, asked[:4]), return_exceptions=True)
    last = await keep(asked[4])

    assert (first, *others, last) == (True, False, True, True)
    assert isinstance(refused, PayloadError)
    assert [_kept(yard, job) for job in (held, large, stale)] == [{"a": b"1"}, {}, {}]
    assert _kept(yard, same) == {"a": b"2", "b": b"2"}


async def test_two_steps_of_one_job_are_written_one_after_the_other(
    yard: Yard, faults: Faults
) -> None:
    (job,) = _held(yard, 1)
    writer = AttachmentWriter(yard.store)

    kept = [Attaching(job.id, job.fence, {"a": value}) for value in (b"1", b"2", b"3")]
    assert await asyncio.gather(*map(writer.akeep, kept)) == [True] * 3

    assert (_kept(yard, job), faults.calls["attach"]) == ({"a": b"3"}, 3)


async def test_who_cannot_reach_the_store_is_told_and_the_next_is_written(
    yard: Yard, faults: Faults
) -> None:
    first, second = _held(yard, 2)
    writer = AttachmentWriter(yard.store)
    faults.away = 1
    asked = [Attaching(job.id, job.fence, {"a": b"1"}) for job in (first, second)]

    told = await asyncio.gather(*map(writer.akeep, asked), return_exceptions=True)

    assert [type(each) for each in told] == [StoreUnavailable] * 2
    assert await asyncio.gather(*map(writer.akeep, asked)) == [True, True]


async def test_who_does_not_wait_any_more_holds_no_other_up(yard: Yard, faults: Faults) -> None:
    first, second = _held(yard, 2)
    writer = AttachmentWriter(yard.store)
    given_up, waits = (
        asyncio.ensure_future(writer.akeep(Attaching(job.id, job.fence, {"a": b"1"})))
        for job in (first, second)
    )
    given_up.cancel()

    assert await waits
    assert (_kept(yard, first), faults.calls["attach"]) == ({}, 1)


async def test_what_jobs_came_to_is_written_beside_the_next_steps(
    yard: Yard, faults: Faults
) -> None:
    first, second = (Attaching(job.id, job.fence, {"a": b"1"}) for job in _held(yard, 2))
    writer, told = AttachmentWriter(yard.store), list[int]()
    writer.after_write = lambda: told.append(faults.calls["attach"])

    async def one_after_the_other() -> None:
        await writer.akeep(first)
        await writer.akeep(second)

    await one_after_the_other()

    assert (told, faults.calls["attach"]) == ([1], 2)  # after the first write, before the second


async def test_a_loop_of_a_handler_s_own_is_served_too(yard: Yard) -> None:
    (job,) = _held(yard, 1)
    writer = AttachmentWriter(yard.store)
    one = Attaching(job.id, job.fence, {"a": b"1"})

    async def keep() -> bool:
        return await writer.akeep(one)

    assert await asyncio.to_thread(lambda: asyncio.run(keep()))
    assert _kept(yard, job) == {"a": b"1"}
