# SPDX-License-Identifier: MIT
"""Threads, event loops, forks and closing: nothing is lost, and none disturbs another."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest

from faults.proxy import Proxy
from packhorse.errors import StoreUnavailable
from packhorse.stores.redis.store import RedisStore
from tests.servers.redis import RedisServer, redis_url
from tests.stores.redis.conftest import Opening
from tests.stores.redis.support import asking, names_in, submitting
from tests.support.children import fork, in_threads, python, reap


def clients_of(server: RedisServer) -> int:
    """Connections that stores have open."""
    with server.client() as client:
        return sum(each["name"] == "packhorse" for each in client.client_list())


def test_fifty_threads_write_at_once_and_all_is_kept(store: RedisStore) -> None:
    names = [f"job {number}" for number in range(50)]

    in_threads(*(partial(store.run, submitting(store, name)) for name in names))

    assert sorted(names_in(store)) == sorted(names)


def test_threads_share_few_connections(opening: Opening, server: RedisServer) -> None:
    store = opening(server.url, connections=3)

    in_threads(*(partial(store.run, asking("PING")) for _ in range(20)))

    assert 1 <= clients_of(server) <= 3


def test_an_event_loop_has_one_connection_however_much_it_asks(
    opening: Opening, server: RedisServer
) -> None:
    store = opening(server.url)

    async def scenario() -> int:
        await asyncio.gather(*(store.arun(asking("PING")) for _ in range(200)))
        return clients_of(server)

    assert asyncio.run(scenario()) == 1


def test_answers_find_their_askers_however_large_they_are(store: RedisStore) -> None:
    texts = [str(number) * size for number, size in enumerate([1, 70_000, 3, 2_000_000, 5] * 4)]

    async def scenario() -> list[Any]:
        return list(await asyncio.gather(*(store.arun(asking("ECHO", text)) for text in texts)))

    assert [answer.decode() for answer in asyncio.run(scenario())] == texts


def test_an_asker_who_goes_leaves_the_others_their_answers(store: RedisStore) -> None:
    async def scenario() -> list[bytes]:
        asked = [asyncio.create_task(store.arun(asking("ECHO", number))) for number in range(10)]
        await asyncio.sleep(0)
        for task in asked[::2]:
            task.cancel()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return [answer for answer in answers if isinstance(answer, bytes)]

    store.run(asking("PING"))
    answers = asyncio.run(scenario())

    assert [int(answer) for answer in answers] == [1, 3, 5, 7, 9]


def test_every_event_loop_is_served_also_after_others_have_closed(
    opening: Opening, server: RedisServer
) -> None:
    store = opening(server.url)

    for number in range(5):
        asyncio.run(store.arun(submitting(store, f"job {number}")))

    assert len(names_in(store)) == 5
    assert clients_of(server) <= 2 + 1  # of the last loop, of this thread, one on its way out


def test_closing_lets_go_of_every_connection(opening: Opening, server: RedisServer) -> None:
    store = opening(server.url)
    store.run(asking("PING"))
    asyncio.run(store.arun(asking("PING")))

    async def scenario() -> None:
        await store.arun(asking("PING"))
        listener = store.wakeups.listen(frozenset({"queue:mail"}))
        listener.close()
        store.close()

    asyncio.run(scenario())

    assert clients_of(server) == 0


def test_a_closed_store_opens_again_when_it_is_used(store: RedisStore) -> None:
    store.run(submitting(store, "before"))

    store.close()
    store.close()
    store.run(submitting(store, "after"))
    asyncio.run(store.arun(submitting(store, "later")))

    assert names_in(store) == ["before", "after", "later"]


def test_closing_finishes_what_is_under_way(opening: Opening, server: RedisServer) -> None:
    store = opening(server.url)

    async def scenario() -> list[Any]:
        await store.arun(asking("PING"))
        server.pause()
        asked = [asyncio.create_task(store.arun(asking("ECHO", number))) for number in range(3)]
        await asyncio.sleep(0.01)
        store.close()
        server.resume()
        return list(await asyncio.gather(*asked))

    assert asyncio.run(scenario()) == [b"0", b"1", b"2"]


def test_closing_from_another_thread_finishes_what_the_loop_has_under_way(
    opening: Opening, server: RedisServer
) -> None:
    store = opening(server.url)
    begun, answers = threading.Event(), []

    async def scenario() -> None:
        await store.arun(asking("PING"))
        server.pause()
        asked = asyncio.create_task(store.arun(asking("ECHO", "here")))
        await asyncio.sleep(0.01)
        begun.set()
        answers.append(await asked)

    thread = threading.Thread(target=lambda: asyncio.run(scenario()))
    thread.start()
    assert begun.wait(20)
    store.close()
    server.resume()
    thread.join(20)

    assert answers == [b"here"]


def test_a_connection_the_server_closed_meanwhile_costs_nothing(
    opening: Opening, server: RedisServer
) -> None:
    """Not even a claim, which is never sent twice."""
    store = opening(server.url)
    claimed = asking("PING", verb="claim", writes=True)

    async def scenario() -> None:
        await store.arun(claimed)
        server.ask("CLIENT", "KILL", "TYPE", "normal")
        await asyncio.sleep(0.01)
        await store.arun(claimed)

    store.run(claimed)
    server.ask("CLIENT", "KILL", "TYPE", "normal")
    store.run(claimed)
    asyncio.run(scenario())


def test_a_claim_whose_answer_was_lost_is_not_sent_again(
    opening: Opening, server: RedisServer, proxy: Proxy
) -> None:
    store = opening(f"redis://127.0.0.1:{proxy.port}")
    counted = asking("INCR", "claims", verb="claim", writes=True)
    store.run(asking("PING"))

    for attempt in (store.run, lambda plan: asyncio.run(store.arun(plan))):
        proxy.lose_answer_to(lambda data: b"claims" in data)
        with pytest.raises(StoreUnavailable) as lost:
            attempt(counted)
        assert lost.value.maybe_stored

    assert server.ask("GET", "claims") == b"2"


def test_a_read_whose_answer_was_lost_is_sent_again(
    opening: Opening, server: RedisServer, proxy: Proxy
) -> None:
    store = opening(f"redis://127.0.0.1:{proxy.port}")
    store.run(submitting(store, "job"))

    for attempt in (store.run, lambda plan: asyncio.run(store.arun(plan))):
        proxy.lose_answer_to(lambda data: b"ECHO" in data)
        assert attempt(asking("ECHO", "here")) == b"here"

    assert proxy.answers_lost == 2


def test_a_silent_server_is_given_up_in_the_time_that_was_set(
    opening: Opening, server: RedisServer
) -> None:
    store = opening(server.url, timeout="200ms")
    store.run(submitting(store, "before"))
    server.pause()

    with pytest.raises(StoreUnavailable, match="does not answer") as silent:
        store.run(submitting(store, "meanwhile"))
    assert silent.value.maybe_stored
    with pytest.raises(StoreUnavailable, match="paused or overloaded") as unanswered:
        asyncio.run(store.arun(submitting(store, "not even connected")))
    assert not unanswered.value.maybe_stored

    server.resume()
    store.run(submitting(store, "after"))
    assert names_in(store) == ["before", "meanwhile", "after"]


def test_a_loop_gives_up_a_silent_server_and_all_who_wait_on_it(
    opening: Opening, server: RedisServer
) -> None:
    store = opening(server.url, timeout="200ms")

    async def scenario() -> list[object]:
        await store.arun(asking("PING"))
        server.pause()
        asked = (store.arun(submitting(store, name)) for name in ("one", "other"))
        return list(await asyncio.gather(*asked, return_exceptions=True))

    answers = asyncio.run(scenario())
    server.resume()

    assert [type(answer) for answer in answers] == [StoreUnavailable] * 2
    assert all(getattr(answer, "maybe_stored", False) for answer in answers)
    store.run(submitting(store, "one", "other"))
    assert names_in(store) == ["one", "other"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
class TestForks:
    def test_a_child_writes_through_the_store_its_parent_used(self, store: RedisStore) -> None:
        store.run(submitting(store, "before"))
        asyncio.run(store.arun(submitting(store, "before, async")))

        def work() -> None:
            store.run(submitting(store, "child"))
            asyncio.run(store.arun(submitting(store, "child, async")))
            store.close()

        assert reap(fork(work)) == 0

        store.run(submitting(store, "after"))
        asyncio.run(store.arun(submitting(store, "after, async")))
        assert names_in(store) == [
            *("before", "before, async", "child", "child, async", "after", "after, async")
        ]

    def test_parent_and_children_do_not_read_each_others_answers(self, store: RedisStore) -> None:
        store.run(asking("PING"))

        def work() -> None:
            for number in range(200):
                text = f"child {number}"
                assert store.run(asking("ECHO", text)) == text.encode()

        children = [fork(work) for _ in range(3)]
        for number in range(200):
            assert store.run(asking("ECHO", number)) == str(number).encode()

        assert [reap(child) for child in children] == [0, 0, 0]

    def test_forks_while_threads_and_a_loop_are_at_work(self, store: RedisStore) -> None:
        done = threading.Event()

        def ask_on() -> None:
            while not done.is_set():
                store.run(asking("PING"))

        async def ask_on_in_loop() -> None:
            while not done.is_set():
                await store.arun(asking("PING"))

        def fork_children() -> None:
            def work(number: int) -> None:
                store.run(submitting(store, f"child {number}"))
                asyncio.run(store.arun(submitting(store, f"child {number}, async")))

            try:
                children = [fork(partial(work, number)) for number in range(8)]
                assert [reap(child) for child in children] == [0] * 8
            finally:
                done.set()

        in_threads(ask_on, ask_on, lambda: asyncio.run(ask_on_in_loop()), fork_children)

        assert len(names_in(store)) == 16

    def test_a_child_hears_on_its_own(self, store: RedisStore) -> None:
        async def listening() -> None:
            listener = store.wakeups.listen(frozenset({"queue:default"}))
            assert await listener.wait(0.01) == frozenset()

            def work() -> None:
                asyncio.run(self._hear(store))

            child = await asyncio.to_thread(fork, work)
            assert await asyncio.to_thread(reap, child) == 0
            listener.close()

        asyncio.run(listening())

    @staticmethod
    async def _hear(store: RedisStore) -> None:
        listener = store.wakeups.listen(frozenset({"queue:child"}))
        plan = asking("PUBLISH", f"{store._settings.tag}:wake:queue:child", "queue:child")
        await store.arun(plan)
        assert await listener.wait(20) == {"queue:child"}
        listener.close()


def test_a_process_may_end_without_closing_its_store(namespace: str) -> None:
    program = """
import asyncio, sys
from packhorse.stores import open_store
from packhorse.testing.conformance.samples import new_job
store = open_store(sys.argv[1])
store.run(store.jobs.submit([new_job("sync")]))
async def main():
    await store.arun(store.jobs.submit([new_job("async")]))
    store.wakeups.listen(frozenset({"queue:mail"}))
asyncio.run(main())
"""
    answer = python(program, f"{redis_url()}?namespace={namespace}")

    assert (answer.returncode, answer.stderr) == (0, "")
