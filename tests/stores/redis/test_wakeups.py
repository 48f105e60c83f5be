# SPDX-License-Identifier: MIT
"""Wake-ups through Redis: few connections, found again when lost, and not needed."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from packhorse.stores.plan import Plan
from packhorse.stores.redis.store import RedisStore
from packhorse.testing.conformance.samples import QUEUE
from tests.servers.redis import RedisServer, free_port
from tests.stores.redis.conftest import Opening
from tests.stores.redis.support import PATIENCE_S, asking, submitting

TOPIC: Final = f"queue:{QUEUE}"


async def test_hundreds_of_listeners_share_one_connection_and_each_hears_its_own(
    opening: Opening, server: RedisServer
) -> None:
    store = opening(server.url)
    listeners = [store.wakeups.listen(frozenset({f"queue:{number}"})) for number in range(300)]

    for number in (7, 70, 299):
        await store.arun(_telling(store, f"queue:{number}"))
    heard = await asyncio.gather(*(listeners[number].wait(PATIENCE_S) for number in (7, 70, 299)))

    assert heard == [{"queue:7"}, {"queue:70"}, {"queue:299"}]
    assert await listeners[8].wait(0) == frozenset()
    connected = int(server.ask("INFO", "clients")["connected_clients"])
    assert connected <= 3  # one asks, one hears, and this look
    for listener in listeners:
        listener.close()


async def test_waiting_for_many_results_takes_one_subscription(
    opening: Opening, server: RedisServer
) -> None:
    store = opening(server.url)
    listeners = [store.wakeups.listen(frozenset({f"job:{number}"})) for number in range(100)]

    await store.arun(_telling(store, "job:42", channel="job"))

    assert await listeners[42].wait(PATIENCE_S) == {"job:42"}
    assert server.ask("PUBSUB", "CHANNELS", "*") == [f"{store._settings.tag}:wake:job".encode()]
    for listener in listeners:
        listener.close()


async def test_a_channel_without_listeners_is_left(opening: Opening, server: RedisServer) -> None:
    store = opening(server.url)
    one, other = (store.wakeups.listen(frozenset({TOPIC})) for _ in range(2))

    one.close()
    await store.arun(_telling(store, TOPIC))
    assert await other.wait(PATIENCE_S) == {TOPIC}

    other.close()
    again = store.wakeups.listen(frozenset({TOPIC}))
    await store.arun(_telling(store, TOPIC))
    assert await again.wait(PATIENCE_S) == {TOPIC}
    again.close()

    async with asyncio.timeout(PATIENCE_S):
        while server.ask("PUBSUB", "CHANNELS", "*"):
            await asyncio.sleep(0.01)


async def test_a_lost_connection_is_made_again_and_everybody_is_told_to_look(
    opening: Opening, server: RedisServer
) -> None:
    store = opening(server.url)
    listener = store.wakeups.listen(frozenset({TOPIC}))
    assert await listener.wait(0.01) == frozenset()

    server.ask("CLIENT", "KILL", "TYPE", "pubsub")

    assert await listener.wait(PATIENCE_S) == {"*"}
    async with asyncio.timeout(PATIENCE_S):
        while not server.ask("PUBSUB", "CHANNELS", "*"):
            await asyncio.sleep(0.01)
    heard: frozenset[str] = frozenset()
    await store.arun(submitting(store, "job"))
    async with asyncio.timeout(PATIENCE_S):
        while TOPIC not in heard:
            heard = await listener.wait(PATIENCE_S)
    listener.close()


async def test_a_listener_is_there_before_its_server_and_hears_once_it_comes(
    opening: Opening, server: RedisServer
) -> None:
    server.stop()
    store = opening(server.url)
    listener = store.wakeups.listen(frozenset({TOPIC}))
    assert await listener.wait(0.01) == frozenset()

    server.start()

    assert await listener.wait(PATIENCE_S) == {"*"}
    await store.arun(submitting(store, "job"))
    assert await listener.wait(PATIENCE_S) & {TOPIC, "*"}
    listener.close()


async def test_no_server_ends_no_wait_and_raises_nothing(opening: Opening) -> None:
    store = opening(f"redis://127.0.0.1:{free_port()}")
    listener = store.wakeups.listen(frozenset({TOPIC}))

    assert await listener.wait(0.3) == frozenset()
    listener.close()


async def test_who_listens_goes_on_hearing_when_the_store_is_closed(store: RedisStore) -> None:
    listener = store.wakeups.listen(frozenset({TOPIC}))

    store.close()
    assert await listener.wait(PATIENCE_S) == {"*"}  # connected again
    await store.arun(submitting(store, "job"))

    assert await listener.wait(PATIENCE_S) & {TOPIC, "*"}
    listener.close()


async def test_a_silent_connection_is_found_out_and_replaced(
    opening: Opening, server: RedisServer
) -> None:
    store = opening(server.url, timeout="300ms", connect_timeout="300ms")
    listener = store.wakeups.listen(frozenset({TOPIC}))
    ear = store.wakeups._subscribers[asyncio.get_running_loop()]
    server.pause()

    ear._ping()  # asks
    ear._ping()  # has no answer
    assert await listener.wait(PATIENCE_S) == {"*"}

    server.resume()
    assert await listener.wait(PATIENCE_S) == {"*"}
    listener.close()


def test_listeners_of_a_closed_event_loop_are_cleared_away(
    opening: Opening, server: RedisServer
) -> None:
    store = opening(server.url)

    async def left_listening() -> None:
        store.wakeups.listen(frozenset({TOPIC}))

    for _ in range(5):
        asyncio.run(left_listening())

    assert len(store.wakeups._subscribers) == 1
    store.close()
    assert not store.wakeups._subscribers


def _telling(store: RedisStore, topic: str, channel: str | None = None) -> Plan[Any]:
    return asking("PUBLISH", f"{store._settings.tag}:wake:{channel or topic}", topic)
