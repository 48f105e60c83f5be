# SPDX-License-Identifier: MIT
"""Plans of event loops share commits on the owner thread, and none suffers from a neighbour."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from packhorse.errors import ConfigError, StoreUnavailable
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.requests import QueueSettings
from packhorse.stores.sql.statements import NOW
from packhorse.stores.sqlite.runner import PlanRunner
from packhorse.stores.sqlite.store import SqliteStore
from packhorse.stores.sqlite.wakeups import SqliteWakeups
from packhorse.testing.conformance.samples import QUEUE, new_job
from tests.support.children import in_threads
from tests.unit.sqlite_support import (
    PATIENCE_S,
    Pause,
    Traced,
    names_in,
    real_connect,
    sqlite_store,
    submitting,
    waiting,
    write_lock,
)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Traced:
    traced = Traced()
    monkeypatch.setattr(sqlite3, "connect", traced.connect)
    return traced


@pytest.fixture
async def store(traced: Traced, tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """Its owner thread has its connection already."""
    store = sqlite_store(tmp_path, "?busy_timeout=200ms")
    await store.arun(submitting(store, "first"))
    traced.statements.clear()
    yield store
    store.close()


async def together(store: SqliteStore, *plans: Plan[Any]) -> list[Any]:
    """The answers, or exceptions, of plans that waited while the owner thread was busy."""
    pause = Pause()
    busy = await pause.begin(store)
    tasks = await waiting(store, plans)
    pause.go_on.set()
    async with asyncio.timeout(PATIENCE_S):
        answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert await busy == "went on"
    return answers


# --------------------------------------------------------------------------------- one commit


async def test_plans_that_wait_together_share_one_commit(
    store: SqliteStore, traced: Traced, tmp_path: Path
) -> None:
    names = [str(number) for number in range(100)]

    answers = await together(store, *(submitting(store, name) for name in names))

    assert [answer[0].job_id for answer in answers] == names
    assert names_in(tmp_path) == {"first", *names}
    assert traced.count("commit") == 2  # the plan that kept the thread busy, and all the others


async def test_a_group_has_a_bound_and_the_rest_comes_next(
    store: SqliteStore, traced: Traced, tmp_path: Path
) -> None:
    answers = await together(store, *(submitting(store, str(number)) for number in range(600)))

    assert not [answer for answer in answers if isinstance(answer, BaseException)]
    assert len(names_in(tmp_path)) == 601
    assert traced.count("commit") == 3


async def test_commits_of_others_are_one_step_each_for_an_onlooker(
    store: SqliteStore, tmp_path: Path
) -> None:
    onlooker = real_connect(tmp_path / "jobs.db")
    pause = Pause()
    busy = await pause.begin(store)
    tasks = await waiting(store, [submitting(store, str(number)) for number in range(20)])
    seen = {(_version(onlooker), len(names_in(tmp_path)))}
    pause.go_on.set()
    while not all(task.done() for task in tasks):
        seen.add((_version(onlooker), len(names_in(tmp_path))))
        await asyncio.sleep(0)
    seen.add((_version(onlooker), len(names_in(tmp_path))))

    await busy
    onlooker.close()
    assert {stored for _, stored in seen} == {1, 21}


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("pragma data_version").fetchone()[0])


async def test_plans_that_only_read_take_no_write_lock_and_share_a_snapshot(
    store: SqliteStore, traced: Traced, tmp_path: Path
) -> None:
    await store.arun(store.inspection.job("first"))
    traced.statements.clear()

    with write_lock(tmp_path):
        plans: list[Plan[Any]] = [store.inspection.job("first"), store.queues.depth(QUEUE)] * 10
        answers = await asyncio.gather(*(store.arun(plan) for plan in plans))

    assert [answer.id for answer in answers[::2]] == ["first"] * 10
    assert answers[1::2] == [1] * 10
    assert traced.count("begin immediate") == 0


# -------------------------------------------------------------------------------- neighbours


def failing(store: SqliteStore, error: BaseException) -> Plan[None]:
    """Stores a job, wakes a queue, and then fails."""

    def steps() -> Steps[None]:
        yield from store.jobs.submit([new_job("half-done", queue="unlucky")]).steps()
        raise error

    return Plan("failing", steps)


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("refused"),
        sqlite3.IntegrityError("constraint"),
        ValueError("a bug"),
        OverflowError("a number too large for SQLite"),
        UnicodeEncodeError("utf-8", "\udc80", 0, 1, "a text SQLite cannot keep"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_one_failing_plan_neither_fails_nor_undoes_its_neighbours(
    error: Exception, store: SqliteStore, traced: Traced, tmp_path: Path
) -> None:
    names = [str(number) for number in range(20)]
    good = [submitting(store, name) for name in names]

    answers = await together(store, *good[:10], failing(store, error), *good[10:])

    told = answers.pop(10)
    assert isinstance(told, Exception)
    assert str(error) in str(told)
    assert [answer[0].job_id for answer in answers] == names
    assert names_in(tmp_path) == {"first", *names}


async def test_many_failing_plans_do_not_cost_their_neighbours_the_shared_commit(
    store: SqliteStore, traced: Traced, tmp_path: Path
) -> None:
    good = [submitting(store, str(number)) for number in range(50)]
    bad = [failing(store, ConfigError("refused")) for _ in range(50)]
    mixed = [plan for pair in zip(good, bad, strict=True) for plan in pair]

    answers = await together(store, *mixed)

    assert [type(answer) for answer in answers[1::2]] == [ConfigError] * 50
    assert len(names_in(tmp_path)) == 51
    assert traced.count("commit") == 2


async def test_a_plan_that_failed_in_a_group_wakes_no_listener(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(SqliteWakeups, "send", lambda _, topics: sent.extend(topics))
    store = sqlite_store(tmp_path)

    await together(store, submitting(store, "good"), failing(store, ValueError("a bug")))

    store.close()
    assert sent == [f"queue:{QUEUE}"]


async def test_a_refused_declaration_is_undone_and_its_neighbours_are_not(
    store: SqliteStore, tmp_path: Path
) -> None:
    refused = store.queues.declare([QueueSettings("mail", dead_letter="mail")])

    answers = await together(store, submitting(store, "a"), refused, submitting(store, "b"))

    assert isinstance(answers[1], ConfigError)
    assert names_in(tmp_path) == {"first", "a", "b"}
    assert "mail" not in {state.settings.name for state in store.run(store.queues.queues())}


async def test_one_plan_too_large_for_the_disk_does_not_take_the_small_ones_with_it(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def small_disk(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = real_connect(*arguments, **options)
        connection.execute("pragma max_page_count = 80")
        return connection

    store.close()
    monkeypatch.setattr(sqlite3, "connect", small_disk)
    large = [new_job(f"large-{number}", payload=b'"' + b"x" * 4096 + b'"') for number in range(99)]

    answers = await together(
        store, submitting(store, "a"), store.jobs.submit(large), submitting(store, "b")
    )

    assert isinstance(answers[1], StoreUnavailable)
    assert names_in(tmp_path) == {"first", "a", "b"}


async def test_a_locked_file_is_waited_for_once_not_by_each_plan_in_turn(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patiently, given_up = PlanRunner._retry_while_locked, []

    def counted(runner: PlanRunner, act: Callable[[], Any]) -> Any:
        try:
            return patiently(runner, act)
        except sqlite3.OperationalError as error:
            given_up.append(error)
            raise

    monkeypatch.setattr(PlanRunner, "_retry_while_locked", counted)

    async def submit_ten() -> list[Any]:
        pause = Pause()
        reading = asyncio.create_task(store.arun(pause_of_looking(pause)))
        await asyncio.to_thread(pause.begun.wait, PATIENCE_S)
        tasks = await waiting(store, [submitting(store, str(number)) for number in range(10)])
        pause.go_on.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert await reading == "looked"
        return answers

    with write_lock(tmp_path):
        answers = await submit_ten()

    assert [type(answer) for answer in answers] == [StoreUnavailable] * 10
    assert len({id(answer) for answer in answers}) == 10  # each may be raised and noted by itself
    assert len(given_up) == 1
    await store.arun(submitting(store, "after"))
    assert names_in(tmp_path) == {"first", "after"}


def pause_of_looking(pause: Pause) -> Plan[str]:
    """Keeps the owner thread busy without the write lock."""

    def look() -> Steps[str | None]:
        yield from pause.plan().steps()
        return "looked"

    return Plan("pause", pause.plan().steps, look=look)


# ------------------------------------------------------------------------------------ waiters


async def test_a_cancelled_waiters_plan_that_has_not_begun_is_skipped(
    store: SqliteStore, tmp_path: Path
) -> None:
    pause = Pause()
    busy = await pause.begin(store)
    plans = [submitting(store, name) for name in ("kept", "dropped", "also kept")]
    kept, dropped, also_kept = await waiting(store, plans)

    dropped.cancel()
    await asyncio.sleep(0)
    pause.go_on.set()
    await asyncio.gather(busy, kept, also_kept)

    assert dropped.cancelled()
    assert names_in(tmp_path) == {"first", "kept", "also kept"}


async def test_when_all_have_given_up_the_thread_goes_on(
    store: SqliteStore, tmp_path: Path
) -> None:
    pause = Pause()
    busy = await pause.begin(store)
    for task in await waiting(store, [submitting(store, "a"), submitting(store, "b")]):
        task.cancel()
    pause.go_on.set()
    await busy

    await store.arun(submitting(store, "c"))

    assert names_in(tmp_path) == {"first", "c"}


async def test_a_waiter_that_gives_up_during_its_plan_leaves_the_others_their_answers(
    store: SqliteStore,
) -> None:
    pause = Pause()
    busy = await pause.begin(store)
    other = asyncio.create_task(store.arun(store.queues.depth(QUEUE)))

    busy.cancel()
    await asyncio.gather(busy, return_exceptions=True)
    pause.go_on.set()

    assert await other == 1
    assert await store.arun(store.jobs.submit([])) == ()


def test_event_loops_of_several_threads_each_get_their_own_answers(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path)

    async def submit(prefix: str) -> None:
        names = [f"{prefix}-{number}" for number in range(50)]
        plans = [submitting(store, name) for name in names]
        answers = await asyncio.gather(*(store.arun(plan) for plan in plans))
        assert [answer[0].job_id for answer in answers] == names

    in_threads(*(lambda prefix=prefix: asyncio.run(submit(prefix)) for prefix in "abc"))

    store.close()
    assert len(names_in(tmp_path)) == 150


def test_an_event_loop_that_was_closed_harms_no_other(tmp_path: Path) -> None:
    store, pause = sqlite_store(tmp_path), Pause()
    loop = asyncio.new_event_loop()

    async def leave_behind() -> list[asyncio.Task[Any]]:
        return [await pause.begin(store), *await waiting(store, [submitting(store, "orphan")])]

    left = loop.run_until_complete(leave_behind())
    for task in left:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    pause.go_on.set()

    asyncio.run(store.arun(submitting(store, "later")))

    store.close()
    assert names_in(tmp_path) == {"orphan", "later"}


# ------------------------------------------------------------------------------ the thread itself


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
async def test_the_thread_outlives_whatever_a_plan_raises(
    error: BaseException, store: SqliteStore, tmp_path: Path
) -> None:
    with pytest.raises(StoreUnavailable, match=type(error).__name__):
        await store.arun(failing(store, error))

    await store.arun(submitting(store, "after"))

    assert names_in(tmp_path) == {"first", "after"}


async def test_a_plan_that_asks_for_the_unknown_is_told_so(store: SqliteStore) -> None:
    def steps() -> Steps[None]:
        yield NOW
        yield "a wish"

    with pytest.raises(TypeError, match="cannot ask for 'a wish'"):
        await store.arun(Plan("wish", steps))


async def test_a_thread_that_cannot_be_started_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = sqlite_store(tmp_path)

    def exhausted(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", exhausted)
        with pytest.raises(StoreUnavailable, match="can't start new thread"):
            await store.arun(submitting(store, "refused"))

    async with asyncio.timeout(PATIENCE_S):
        await store.arun(submitting(store, "accepted"))
    store.close()
    assert names_in(tmp_path) == {"accepted"}
