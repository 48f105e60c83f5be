# SPDX-License-Identifier: MIT
"""Bulk submits on every store: in bounded transactions, or all or none if that is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from packhorse import (
    Call,
    FunctionTask,
    JobHandle,
    Packhorse,
    QueueFull,
    StoreUnavailable,
    UsageError,
)
from packhorse.client.submission import (
    PART_BYTES_MAX,
    PART_JOBS_MAX,
)
from packhorse.core.codec import PAYLOAD_BYTES_MAX
from packhorse.core.job import NewJob
from packhorse.stores.requests import Submitted

NewApp = Callable[[], Packhorse]
Work = FunctionTask[..., None]
Before = Callable[[int], object]
Bulk = Callable[..., list[JobHandle[Any]]]


def work_of(app: Packhorse, queue: str = "default") -> Work:
    @app.task(queue=queue)
    def work(number: int = 0, text: str = "") -> None: ...

    return work


@pytest.fixture(params=["enqueue_many", "aenqueue_many"])
def bulk(request: pytest.FixtureRequest) -> Bulk:
    """Submits calls in bulk, from plain or from async code."""

    def submit(app: Packhorse, calls: Iterable[Call[Any]], **options: Any) -> list[JobHandle[Any]]:
        if request.param == "enqueue_many":
            return app.enqueue_many(calls, **options)
        return asyncio.run(app.aenqueue_many(calls, **options))

    return submit


def watch(app: Packhorse, patch: pytest.MonkeyPatch, before: Before) -> list[Sequence[NewJob]]:
    """What each transaction of an app's submits brings; `before` is called with its number."""
    connection, parts = app._connection, []
    submit, asubmit = connection.submit, connection.asubmit

    def note(jobs: Sequence[NewJob]) -> None:
        parts.append(jobs)
        before(len(parts))

    def watched(jobs: Sequence[NewJob], **how: Any) -> tuple[Submitted, ...]:
        note(jobs)
        return submit(jobs, **how)

    async def awatched(jobs: Sequence[NewJob], **how: Any) -> tuple[Submitted, ...]:
        note(jobs)
        return await asubmit(jobs, **how)

    patch.setattr(connection, "submit", watched)
    patch.setattr(connection, "asubmit", awatched)
    return parts


@pytest.mark.filterwarnings("ignore:enqueue")
@pytest.mark.parametrize("keyed", [False, True])
def test_others_are_served_between_the_transactions_of_a_bulk(
    new_app: NewApp, bulk: Bulk, monkeypatch: pytest.MonkeyPatch, *, keyed: bool
) -> None:
    app, other = new_app(), new_app()
    work, urgent = work_of(app), work_of(other, "urgent")
    depths: list[int] = []

    def submit_elsewhere(_: int) -> None:
        urgent.enqueue()
        depths.append(other.depth("default"))

    parts = watch(app, monkeypatch, submit_elsewhere)
    keys = [f"key-{n % 700}" if keyed else None for n in range(2 * PART_JOBS_MAX + 1)]

    jobs = bulk(app, [work.call(n).using(ordering_key=key) for n, key in enumerate(keys)])

    assert [len(part) for part in parts] == [PART_JOBS_MAX, PART_JOBS_MAX, 1]
    assert depths == [0, PART_JOBS_MAX, 2 * PART_JOBS_MAX]
    assert [job.id for job in jobs] == [job.id for part in parts for job in part]
    assert (app.depth("default"), app.depth("urgent")) == (2 * PART_JOBS_MAX + 1, 3)


def test_large_arguments_make_smaller_transactions(
    new_app: NewApp, bulk: Bulk, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = new_app()
    work = work_of(app)
    parts = watch(app, monkeypatch, lambda _: None)

    with pytest.warns(UserWarning, match="slow the queue down"):
        bulk(app, [work.call(n, "x" * (PAYLOAD_BYTES_MAX - 100)) for n in range(6)])

    assert [len(part) for part in parts] == [4, 2]
    assert all(sum(len(job.payload) for job in part) <= PART_BYTES_MAX for part in parts)


def test_a_refused_bulk_says_what_was_stored_and_goes_on_with_the_rest(
    new_app: NewApp, bulk: Bulk
) -> None:
    app = new_app()
    app.queue("default", max_depth=PART_JOBS_MAX + 1)
    work = work_of(app)

    with pytest.raises(QueueFull, match=r"only the first 1000 of 1003 jobs were stored") as raised:
        bulk(app, [work.call(n) for n in range(PART_JOBS_MAX + 3)])

    error = raised.value
    assert (len(error.stored), len(error.rest)) == (PART_JOBS_MAX, 3)
    assert app.depth("default") == PART_JOBS_MAX
    assert "nothing was stored" not in str(error)
    error.stored[0].cancel()
    error.stored[-1].cancel()
    again = bulk(app, error.rest)
    assert [job.deduplicated for job in again] == [False] * 3
    assert [app.store.run(app.store.inspection.job(job.id)).payload for job in again] == [  # type: ignore[union-attr] # they are there
        call.payload for call in error.rest
    ]


def test_what_may_have_been_stored_is_the_same_job_when_it_is_submitted_again(
    new_app: NewApp, bulk: Bulk, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, other = new_app(), new_app()
    work = work_of(app)
    calls = [work.call(n) for n in range(PART_JOBS_MAX + 2)]

    def lose_the_second_answer(part: int) -> None:
        if part == 2:
            other._connection.submit(parts[1])
            raise StoreUnavailable("the answer was lost", maybe_stored=True)

    with monkeypatch.context() as patch:
        parts = watch(app, patch, lose_the_second_answer)
        with pytest.raises(StoreUnavailable, match="were stored for certain") as raised:
            bulk(app, calls)
    again = bulk(app, raised.value.rest)

    assert [job.deduplicated for job in again] == [True, True]
    assert app.depth("default") == len(calls)


def test_an_atomic_bulk_is_stored_whole_or_not_at_all(
    new_app: NewApp, bulk: Bulk, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = new_app()
    app.queue("default", max_depth=PART_JOBS_MAX + 1)
    work = work_of(app)
    parts = watch(app, monkeypatch, lambda _: None)

    with pytest.raises(QueueFull, match="nothing was stored") as raised:
        bulk(app, [work.call(n) for n in range(PART_JOBS_MAX + 2)], atomic=True)
    assert (raised.value.stored, len(raised.value.rest)) == ((), PART_JOBS_MAX + 2)
    assert app.depth("default") == 0

    assert len(bulk(app, raised.value.rest[1:], atomic=True)) == PART_JOBS_MAX + 1
    assert [len(part) for part in parts] == [PART_JOBS_MAX + 2, PART_JOBS_MAX + 1]


@pytest.mark.parametrize(("count", "length"), [(5_001, 0), (16 * 1_048_576 // 50_000 + 1, 50_000)])
def test_an_atomic_bulk_that_is_too_large_is_refused(
    new_app: NewApp, bulk: Bulk, count: int, length: int
) -> None:
    app = new_app()
    work = work_of(app)

    with pytest.raises(UsageError, match=r"one transaction takes at most 5000 .* leave atomic out"):
        bulk(app, [work.call(n, "x" * length) for n in range(count)], atomic=True)

    assert app.depth("default") == 0
