# SPDX-License-Identifier: MIT
"""A store that loses its data while processes use it is told their limits again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from packhorse import Packhorse, QueueFull, StoreUnavailable
from packhorse.client.store_access import DOUBTED_AFTER_S
from packhorse.core.clock import SystemClock
from packhorse.events import LeaseRegained
from packhorse.stores import open_store
from packhorse.stores.requests import QueueSettings
from packhorse.testing.places import clear_namespace
from tests.servers.redis import redis_url

LIMIT = 3
#: Given to a worker or a consumer that is to notice.
PATIENCE_S = 20.0


class LaterClock(SystemClock):
    """A clock that can be put forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def store_kind(request: pytest.FixtureRequest) -> str:
    """Where data can get lost: memory ends with its process."""
    return str(request.param)


@pytest.fixture
def lose(store_kind: str, store_url: str, tmp_path: Path) -> Callable[[], None]:
    """Removes all that is in the store, behind the back of those who use it."""

    def remove_file() -> None:
        for file in tmp_path.glob("jobs.db*"):
            if file.is_file():
                file.unlink()

    def empty_tables() -> None:
        schema = parse_qs(urlsplit(store_url).query)["schema"][0]
        with psycopg.connect(store_url.partition("?")[0], autocommit=True) as connection:
            rows = connection.execute(
                "select format('%%I.%%I', schemaname, tablename) from pg_tables "
                "where schemaname = %s and tablename not like '%%schema_version'",
                (schema,),
            ).fetchall()
            emptying = ("truncate " + ", ".join(name for (name,) in rows)).encode()
            while True:
                # A worker takes the same tables one by one, in another order.
                with contextlib.suppress(psycopg.errors.DeadlockDetected):
                    connection.execute(emptying)
                    return

    def flush() -> None:
        clear_namespace(redis_url(), parse_qs(urlsplit(store_url).query)["namespace"][0])

    return {"sqlite": remove_file, "postgres": empty_tables, "redis": flush}[store_kind]


@pytest.fixture(autouse=True)
def _look_at_the_file_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packhorse.stores.sqlite.runner._LOOK_AGAIN_S", 0.0)


@pytest.fixture
def clock() -> LaterClock:
    return LaterClock()


@pytest.fixture
def app(store_url: str, clock: LaterClock) -> Iterator[Packhorse]:
    made = Packhorse(store_url, clock=clock)
    yield made
    made.close()


def patiently(act: Callable[[], object]) -> None:
    """Do it; the first that meets a file that was replaced is told so, and then it works."""
    try:
        act()
    except StoreUnavailable:
        act()


@pytest.mark.req("S2-15")
def test_a_producer_keeps_the_depth_of_a_queue_that_the_store_has_forgotten(
    app: Packhorse, clock: LaterClock, lose: Callable[[], None]
) -> None:
    app.queue("default", max_depth=LIMIT)

    @app.task
    def work() -> None: ...

    work.enqueue()
    lose()
    clock.ahead_s += DOUBTED_AFTER_S

    patiently(work.enqueue)
    for _ in range(LIMIT - 1):
        work.enqueue()
    with pytest.raises(QueueFull):
        work.enqueue()

    assert app.depth("default") == LIMIT


def test_an_async_producer_keeps_the_limit_of_a_task_that_the_store_has_forgotten(
    app: Packhorse, store_url: str, clock: LaterClock, lose: Callable[[], None]
) -> None:
    @app.task(concurrency=1)
    def work() -> None: ...

    work.enqueue()
    lose()
    clock.ahead_s += DOUBTED_AFTER_S
    patiently(lambda: asyncio.run(work.aenqueue()))

    with contextlib.closing(open_store(store_url)) as aside:
        (known,) = aside.run(aside.queues.tasks())
    assert (known.name, known.concurrency) == ("work", 1)


def test_a_submit_after_trouble_declares_first(
    app: Packhorse, store_url: str, lose: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    app.queue("default", max_depth=LIMIT)

    @app.task
    def work() -> None: ...

    work.enqueue()
    with monkeypatch.context() as patch:
        patch.setattr(app.store, "run", _fail)
        with pytest.raises(StoreUnavailable):
            work.enqueue()
    lose()
    patiently(work.enqueue)

    assert _declared(store_url).max_depth == LIMIT


def _fail(_plan: object) -> None:
    raise StoreUnavailable("the server was restarted")


async def test_a_worker_declares_its_limits_again_before_it_claims_more(
    app: Packhorse, store_url: str, lose: Callable[[], None]
) -> None:
    app.queue("default", concurrency=1)
    began, regained = asyncio.Event(), _when_regained(app)

    @app.task
    async def work() -> None:
        began.set()

    async with _running(app):
        await work.aenqueue()
        async with asyncio.timeout(PATIENCE_S):
            await began.wait()
            lose()
            await regained.wait()

        assert _declared(store_url).concurrency == 1


async def test_a_consumer_declares_its_limits_again(
    app: Packhorse, store_url: str, lose: Callable[[], None]
) -> None:
    app.queue("default", concurrency=1)
    regained = _when_regained(app)

    async with _fetching(app):
        lose()
        async with asyncio.timeout(PATIENCE_S):
            await regained.wait()

        assert _declared(store_url).concurrency == 1


def _declared(store_url: str) -> QueueSettings:
    """What the store holds of the only queue, seen from aside."""
    with contextlib.closing(open_store(store_url)) as store:
        [state] = store.run(store.queues.queues())
    return state.settings


def _when_regained(app: Packhorse) -> asyncio.Event:
    regained = asyncio.Event()
    app.on(LeaseRegained)(lambda _event: regained.set())
    return regained


@contextlib.asynccontextmanager
async def _running(app: Packhorse) -> AsyncIterator[None]:
    running = asyncio.create_task(app.arun(["default"], lease="1s", concurrency=10))
    try:
        yield
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


@contextlib.asynccontextmanager
async def _fetching(app: Packhorse) -> AsyncIterator[None]:
    consumer = app.consumer(["default"], lease="1s")
    try:
        assert await consumer.fetch(timeout=0.1) is None
        yield
    finally:
        await consumer.close()
