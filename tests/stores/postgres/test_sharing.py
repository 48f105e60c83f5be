# SPDX-License-Identifier: MIT
"""Connections among threads, event loops and processes: shared, bounded, and given back."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from packhorse import StoreUnavailable
from packhorse.core.clock import new_id
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.postgres.connection import LoopConnection, StartupOptions, ThreadConnection
from packhorse.stores.postgres.pool import ConnectionOpener, SyncPool
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.stores.postgres.store import PostgresStore
from packhorse.stores.sql.statements import Rows
from tests.stores.postgres.support import (
    PATIENCE_S,
    ask,
    names_in,
    open_connections,
    postgres_store,
    sessions,
    submitting,
    until,
)
from tests.support.children import fork, in_threads, reap

# Python 3.12 and later warn of every fork beside threads, and some of these are about that.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

Run = Callable[[PostgresStore, Plan[Any]], Any]


@pytest.fixture
def url(url: str) -> str:
    """With a name of its own, so that sessions of other tests are not counted."""
    return f"{url}&application_name={new_id()}"


# ------------------------------------------------------------------------------- limits and time


def test_a_statement_that_takes_too_long_is_ended_by_the_server(url: str, run: Run) -> None:
    store = postgres_store(f"{url}&statement_timeout=200ms")

    def steps() -> Steps[None]:
        yield Rows("select pg_sleep(30)")

    with pytest.raises(StoreUnavailable, match=r"longer than 0\.2 s") as refused:
        run(store, Plan("try", steps))

    assert not refused.value.maybe_stored
    run(store, submitting(store, "job"))
    store.close()


def test_a_pool_without_a_free_connection_gives_up_in_time(url: str) -> None:
    store = postgres_store(f"{url}&pool=1&connect_timeout=300ms")
    store.migrate()
    begun, go_on = threading.Event(), threading.Event()

    def steps() -> Steps[None]:
        yield Rows("select 1")
        begun.set()
        assert go_on.wait(PATIENCE_S)

    busy = threading.Thread(target=lambda: store.run(Plan("try", steps)))
    busy.start()
    assert begun.wait(PATIENCE_S)
    with pytest.raises(StoreUnavailable, match="all 1 connections of the pool were busy"):
        store.run(submitting(store, "job"))
    # What hands out work has connections of its own.
    store.run(store.leases.cancelled("anna"))
    go_on.set()
    busy.join()
    store.run(submitting(store, "job"))
    store.close()


def test_a_thread_without_a_free_connection_is_handed_the_next(url: str) -> None:
    settings = PostgresSettings.from_url(url)
    pool = SyncPool(
        lambda: ThreadConnection(StartupOptions().connect(settings), settings),
        ConnectionOpener(1.0),
        size=1,
        patience_s=PATIENCE_S,
    )
    connection = pool.take()

    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(pool.take)
        until(lambda: pool._waiting == 1)
        pool.give(connection)
        assert waits.result(PATIENCE_S / 2) is connection

    pool.give(connection)
    pool.close()


async def test_an_event_loop_without_a_free_connection_waits_its_turn(url: str) -> None:
    store = postgres_store(f"{url}&pool=2")
    names = [str(number) for number in range(20)]

    await asyncio.gather(*(store.arun(submitting(store, name)) for name in names))

    assert sorted(names_in(url)) == sorted(names)
    assert len(sessions(url)) <= 4
    store.close()


async def test_submits_that_wait_together_share_commits(store: PostgresStore, url: str) -> None:
    await store.arun(submitting(store, "first"))  # of the schema, and of a connection
    names = [str(number) for number in range(60)]

    answers = await asyncio.gather(*(store.arun(submitting(store, name)) for name in names))

    assert [answer.job_id for (answer,) in answers] == names
    schema = store._settings.schema
    [(commits,)] = ask(url, f'select count(distinct xmin::text) from "{schema}".jobs')
    assert commits < 20


async def test_submits_of_one_id_that_wait_together_store_one_job(
    store: PostgresStore, url: str
) -> None:
    await store.arun(submitting(store, "first"))

    answers = await asyncio.gather(*(store.arun(submitting(store, "same")) for _ in range(20)))

    assert [answer.deduplicated for (answer,) in answers].count(False) == 1
    assert names_in(url) == ["first", "same"]


async def test_a_cancelled_wait_for_a_connection_loses_none(url: str) -> None:
    store = postgres_store(f"{url}&pool=1")
    await store.arun(submitting(store, "first"))
    tasks = [asyncio.create_task(store.arun(submitting(store, str(n)))) for n in range(10)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    await asyncio.wait_for(store.arun(submitting(store, "last")), PATIENCE_S)

    assert {"first", "last", *map(str, range(1, 10, 2))} <= set(names_in(url))
    store.close()


# -------------------------------------------------------------------------- forks and event loops


def test_a_child_works_through_the_store_its_parent_used(store: PostgresStore, url: str) -> None:
    store.run(submitting(store, "before"))
    asyncio.run(store.arun(submitting(store, "before, async")))

    def work() -> None:
        store.run(submitting(store, "child"))
        asyncio.run(store.arun(submitting(store, "child, async")))
        store.close()

    assert reap(fork(work)) == 0

    store.run(submitting(store, "after"))
    asyncio.run(store.arun(submitting(store, "after, async")))
    assert names_in(url) == [
        *("before", "before, async", "child", "child, async", "after", "after, async")
    ]


def test_forks_while_threads_and_loops_write(store: PostgresStore, url: str) -> None:
    done = threading.Event()
    written: list[str] = []

    async def submit_on() -> None:
        while not done.is_set():
            name = f"loop-{len(written)}"
            await store.arun(submitting(store, name))
            written.append(name)

    def submit_in_thread() -> None:
        number = 0
        while not done.is_set():
            store.run(submitting(store, f"thread-{number}"))
            written.append(f"thread-{number}")
            number += 1

    def fork_children() -> None:
        try:
            children = [fork(partial(child, str(number))) for number in range(5)]
            assert [reap(one) for one in children] == [0] * 5
        finally:
            done.set()

    def child(name: str) -> None:
        store.run(submitting(store, f"child-{name}"))
        asyncio.run(store.arun(submitting(store, f"child-{name}, async")))

    store.migrate()
    in_threads(lambda: asyncio.run(submit_on()), submit_in_thread, fork_children)

    expected = {f"child-{number}{how}" for number in range(5) for how in ("", ", async")}
    assert set(names_in(url)) == expected | set(written)


def test_loops_that_were_closed_leave_no_sessions_behind(store: PostgresStore, url: str) -> None:
    for number in range(8):
        asyncio.run(store.arun(submitting(store, str(number))))

    until(lambda: len(sessions(url)) <= 4)


def test_closing_closes_every_session(store: PostgresStore, url: str) -> None:
    store.run(submitting(store, "job"))
    asyncio.run(store.arun(submitting(store, "async")))

    store.close()

    until(lambda: not sessions(url))
    store.run(submitting(store, "again"))  # later use opens again


def test_a_loop_that_ends_leaves_no_connection_of_an_unfinished_plan(
    store: PostgresStore, url: str
) -> None:
    store.migrate()
    before = set(open_connections())
    asking = threading.Event()

    def steps() -> Steps[None]:
        asking.set()
        yield Rows("select pg_sleep(1)")

    async def leave_early(*, close: bool) -> None:
        asking.clear()
        plan = asyncio.create_task(store.arun(Plan("try", steps)))
        assert await asyncio.to_thread(asking.wait, PATIENCE_S)
        if close:
            store.close()
        plan.cancel()

    for close in (True, False):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", ResourceWarning)
            asyncio.run(leave_early(close=close))
            opened = set(open_connections()) - before
            assert not [one for one in opened if isinstance(one, LoopConnection)]
            gc.collect()

        assert not [str(one.message) for one in told if one.category is ResourceWarning]
