# SPDX-License-Identifier: MIT
"""Wake-ups by NOTIFY: few, never too few, and noticed when they do not come."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import quote

import psycopg
import pytest

from packhorse.core.job import UniqueRule
from packhorse.stores.listener import TopicListener
from packhorse.stores.postgres.store import PostgresStore
from packhorse.stores.postgres.wakeups import WINDOW_S, Notices, short
from packhorse.testing.conformance.samples import QUEUE, new_job
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.support import (
    PATIENCE_S,
    ask,
    end_sessions,
    held_up,
    postgres_store,
    submitting,
    until,
)
from tests.support.children import fork, reap

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

TOPIC: Final = f"queue:{QUEUE}"


async def heard_by(listener: TopicListener, topic: str) -> bool:
    """Whether the topic itself is heard, and not only that something changed."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if topic in await listener.wait(PATIENCE_S):
                return True


async def channel_tested(store: PostgresStore, *, works: bool = True) -> None:
    """Wait until the channel's own test has come out so."""
    told = store.wakeups._thread
    assert told is not None
    async with asyncio.timeout(PATIENCE_S):
        while told.works is not works or (not works and not told._test_payload):
            await asyncio.sleep(0.005)


class Told:
    """What is sent later, and a signal when it was."""

    def __init__(self) -> None:
        self.payloads: list[str] = []
        self.sent = threading.Event()

    def __call__(self, payloads: Sequence[str]) -> None:
        self.payloads += payloads
        self.sent.set()


class ManualTime:
    """Stands still until a test moves it on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


# ------------------------------------------------------------------------------------------ sending


def test_a_topic_is_told_at_once_and_then_again_at_the_end_of_its_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, time = Told(), ManualTime()
    notices = Notices(told)
    monkeypatch.setattr(notices, "_time", time)

    first = notices.due(["a", "b"])
    soon = [notices.due(["a"]) for _ in range(5)]
    for one in soon:
        notices.later(one.waiting)
    time.now_s += WINDOW_S

    assert first == ([f"{short('a')} {short('b')}"], [])
    assert soon == [([], ["a"])] * 5
    assert told.sent.wait(PATIENCE_S)
    assert told.payloads == [short("a")]  # once for all five, after the last of them


def test_a_topic_is_told_at_once_again_after_its_window() -> None:
    notices = Notices(Told())

    assert notices.due(["a"]).payloads
    threading.Event().wait(WINDOW_S * 1.5)
    assert notices.due(["a"]).payloads


def test_what_waits_goes_with_the_next_commit_and_once_more_when_none_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread has nothing to send while commits come, and has the last word."""
    told, time = Told(), ManualTime()
    notices = Notices(told)
    monkeypatch.setattr(notices, "_time", time)
    notices.due(["a"])
    for _ in range(5):
        time.now_s += 0.4 * WINDOW_S
        assert notices.due(["a"]) == ([], ["a"])
        notices.later(["a"])
        time.now_s += 0.7 * WINDOW_S
        assert notices.due(["a"]) == ([short("a")], [])
    assert not told.sent.wait(3 * WINDOW_S)

    time.now_s += 2 * WINDOW_S

    assert told.sent.wait(PATIENCE_S)
    assert told.payloads == [short("a")]  # a submit may have committed after the last notice


def test_what_waits_is_told_when_the_store_is_closed() -> None:
    told = Told()
    notices = Notices(told)
    notices.later(["a"])

    notices.flush()

    assert told.payloads == [short("a")]


def test_many_topics_fit_their_payloads() -> None:
    payloads = Notices(Told()).due([f"job:{number}" for number in range(1_000)]).payloads

    assert len(payloads) == 3
    assert all(len(payload) < 8_000 for payload in payloads)
    assert sum(len(payload.split()) for payload in payloads) == 1_000


def test_a_burst_of_submits_sends_few_notices(store: PostgresStore) -> None:
    """However many there are: at most two for each window they lasted."""
    with psycopg.connect(store._settings.conninfo, autocommit=True) as listening:
        listening.execute(f'listen "{store._channel}"'.encode())
        began = store._notices._time.monotonic()
        for number in range(100):
            store.run(submitting(store, str(number)))
        store.close()
        lasted_s = store._notices._time.monotonic() - began
        notices = list(listening.notifies(timeout=0.2))

    assert 1 <= len(notices) <= 2 * (lasted_s / WINDOW_S + 1)
    assert {notice.payload for notice in notices} == {short(TOPIC)}


def test_a_plan_that_fails_wakes_no_listener(store: PostgresStore) -> None:
    from packhorse.stores.plan import Plan, Steps, Wake
    from packhorse.stores.sql.statements import Rows

    def steps() -> Steps[None]:
        yield Wake(TOPIC)
        yield Rows("select 1 / 0")

    with psycopg.connect(store._settings.conninfo, autocommit=True) as listening:
        listening.execute(f'listen "{store._channel}"'.encode())
        with pytest.raises(Exception, match="division by zero"):
            store.run(Plan("try", steps))
        store.close()
        assert not list(listening.notifies(timeout=0.1))


# ------------------------------------------------------------------------------------------ hearing


async def test_the_channel_is_tested_and_said_to_work(store: PostgresStore) -> None:
    listener = store.wakeups.listen(frozenset({TOPIC}))

    await channel_tested(store)

    assert store.wakeups.state == "by NOTIFY"
    listener.close()


async def test_a_session_that_is_ended_is_opened_again(store: PostgresStore, url: str) -> None:
    listener = store.wakeups.listen(frozenset({TOPIC}))
    await channel_tested(store)

    assert end_sessions(url) >= 1

    assert await listener.wait(PATIENCE_S) == {"*"}  # something may have been missed
    await channel_tested(store)
    other = postgres_store(url)
    await asyncio.to_thread(other.run, submitting(other, "job"))
    other.close()
    assert await heard_by(listener, TOPIC)
    listener.close()


async def test_a_channel_that_carries_nothing_is_noticed_and_the_clock_wakes_instead(
    own_server: PostgresServer,
) -> None:
    """LISTEN in another database hears nothing, as behind a pooler in transaction mode."""
    with own_server.connect() as connection:
        connection.execute("create database elsewhere")
    listen_url = quote(own_server.url("elsewhere"), safe="")
    store = postgres_store(f"{own_server.url()}?schema=deaf&listen_url={listen_url}")
    listener = store.wakeups.listen(frozenset({TOPIC}))

    async with asyncio.timeout(PATIENCE_S):
        while await listener.wait(PATIENCE_S) != {"*"}:
            pass
        assert await listener.wait(PATIENCE_S) == {"*"}

    assert "by looking every" in store.wakeups.state
    listener.close()
    store.close()
    with own_server.connect() as connection:
        connection.execute("drop schema if exists deaf cascade")
        connection.execute("drop database elsewhere with (force)")


async def test_a_url_to_listen_at_is_used(store: PostgresStore, url: str) -> None:
    direct = quote(url.partition("?")[0] + "?application_name=ears", safe="")
    other = postgres_store(f"{url}&listen_url={direct}")
    listener = other.wakeups.listen(frozenset({TOPIC}))

    await channel_tested(other)

    found = ask(url, "select query from pg_stat_activity where application_name = 'ears'")
    assert ["listen" in query for (query,) in found] == [True]
    listener.close()
    other.close()


async def test_one_connection_serves_all_listeners_of_a_process(
    store: PostgresStore, url: str
) -> None:
    listeners = [store.wakeups.listen(frozenset({f"job:{n}"})) for n in range(20)]
    await channel_tested(store)

    text = "select 1 from pg_stat_activity where starts_with(query, %s)"
    found = ask(url, text, f'listen "{store._channel}"')

    assert len(found) == 1
    for listener in listeners:
        listener.close()


async def test_a_listener_without_a_server_is_told_to_look_for_itself() -> None:
    store = postgres_store("postgresql://127.0.0.1:1/shop")
    listener = store.wakeups.listen(frozenset({TOPIC}))

    for _ in range(3):
        assert await listener.wait(PATIENCE_S) == {"*"}
    assert "connection" in store.wakeups.state
    listener.close()
    store.close()


async def test_a_child_that_closes_what_it_inherited_leaves_the_parent_hearing(
    store: PostgresStore, url: str
) -> None:
    listener = store.wakeups.listen(frozenset({TOPIC}))
    await channel_tested(store)

    def work() -> None:
        store.close()
        store.run(submitting(store, "child"))

    assert reap(fork(work)) == 0

    assert await heard_by(listener, TOPIC)
    listener.close()


def test_a_forked_child_may_listen_itself(store: PostgresStore, url: str) -> None:
    store.run(submitting(store, "before"))

    async def hear() -> None:
        listener = store.wakeups.listen(frozenset({TOPIC}))
        other = postgres_store(url)
        other.run(submitting(other, "job"))
        other.close()
        assert await heard_by(listener, TOPIC)
        listener.close()

    def work() -> Any:
        asyncio.run(hear())
        store.close()

    assert reap(fork(work)) == 0


async def test_who_locks_a_ready_job_to_wait_for_it_lets_claims_look_again(
    store: PostgresStore,
) -> None:
    listener = store.wakeups.listen(frozenset({TOPIC}))
    await channel_tested(store)
    await store.arun(submitting(store, "ready"))
    assert await heard_by(listener, TOPIC)

    await store.arun(store.jobs.await_finish("ready"))

    assert await heard_by(listener, TOPIC)
    listener.close()


def test_a_store_that_was_closed_is_forgotten(url: str) -> None:
    store = postgres_store(url)
    store.run(submitting(store, "job"))
    known = weakref.ref(store)

    store.close()
    del store
    gc.collect()

    assert known() is None


def test_closing_waits_for_what_is_being_sent() -> None:
    sending, go_on = threading.Event(), threading.Event()

    def notify(_payloads: Sequence[str]) -> None:
        sending.set()
        assert go_on.wait(PATIENCE_S)

    notices = Notices(notify)
    notices.later([TOPIC])
    assert sending.wait(PATIENCE_S)
    closing = threading.Thread(target=notices.close)
    closing.start()

    closing.join(2 * WINDOW_S)
    assert closing.is_alive()  # it would take connections from under the thread
    go_on.set()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()


@pytest.mark.parametrize("unique", [None, UniqueRule("key")], ids=["alone", "step by step"])
def test_a_topic_that_has_to_wait_is_told_after_the_commit_it_is_about(
    url: str, store: PostgresStore, unique: UniqueRule | None
) -> None:
    store.run(submitting(store, "first"))
    store._notices._sent[short(TOPIC)] = math.inf  # its window never ends
    schema, conninfo = store._settings.schema, store._settings.conninfo
    with (
        psycopg.connect(conninfo, autocommit=True) as listening,
        held_up(url, schema, "after insert", at_commit=True) as go_on,
        ThreadPoolExecutor(1) as threads,
    ):
        listening.execute(f'listen "{store._channel}"'.encode())
        submit = threads.submit(store.run, store.jobs.submit([new_job("second", unique=unique)]))
        until(lambda: ask(url, "select 1 from pg_locks where not granted"))
        early = list(listening.notifies(timeout=10 * WINDOW_S))
        go_on()
        submit.result(PATIENCE_S)
        late = list(listening.notifies(timeout=PATIENCE_S, stop_after=1))

    assert [notice.payload for notice in early] == []
    assert [notice.payload for notice in late] == [short(TOPIC)]
