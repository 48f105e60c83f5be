# SPDX-License-Identifier: MIT
"""`ctx.transaction()` when the answer to its COMMIT is lost, and what its connections are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from faults.proxy import Proxy
from packhorse import Context, JobHandle, JobStatus, Packhorse, RetryPolicy
from packhorse.stores.postgres.store import PostgresStore
from packhorse.testing.places import drop_schema
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.support import ask, postgres_store

_SCHEMA = "handler_transactions"


@pytest.fixture
def direct(own_server: PostgresServer) -> Iterator[str]:
    """A store on the private server, with a table of the user's own beside it."""
    url = own_server.url()
    ask(url, "create table rows (number integer, thing jsonb)")
    yield f"{url}?schema={_SCHEMA}&connect_timeout=5s&pool=2"
    ask(url, "drop table rows")
    drop_schema(url, _SCHEMA)


@pytest.fixture
def remote(direct: str, own_server: PostgresServer, proxy: Proxy) -> Iterator[PostgresStore]:
    """The same store, reached through the proxy."""
    store = postgres_store(direct.replace(str(own_server.port), str(proxy.port)))
    store.migrate()
    yield store
    store.close()


@pytest.fixture
def app(remote: PostgresStore) -> Packhorse:
    return Packhorse(store=remote)


def numbers(server: PostgresServer) -> list[Any]:
    return [number for (number,) in ask(server.url(), "select number from rows order by number")]


def _booking(app: Packhorse, *, coroutine: bool, lose: Any) -> JobHandle[int]:
    """A job that writes its attempt's number; `lose` is called in the block of the first."""

    def thread(ctx: Context) -> int:
        with ctx.transaction() as tx:
            tx.connection.execute("insert into rows values (%s)", (ctx.job.attempt,))
            tx.complete(ctx.job.attempt)
            if ctx.job.attempt == 1:
                lose()
        return 0

    async def loop(ctx: Context) -> int:
        async with ctx.transaction() as tx:
            await tx.connection.execute("insert into rows values (%s)", (ctx.job.attempt,))
            tx.complete(ctx.job.attempt)
            if ctx.job.attempt == 1:
                lose()
        return 0

    retry = RetryPolicy(initial_delay="1ms", jitter=False)
    task: Any = app.task(name="book", retry=retry)(loop if coroutine else thread)
    job: JobHandle[int] = task.enqueue()
    return job


@pytest.mark.parametrize("coroutine", [False, True])
def test_a_commit_whose_answer_is_lost_is_looked_up_and_not_sent_again(
    app: Packhorse, proxy: Proxy, own_server: PostgresServer, *, coroutine: bool
) -> None:
    lose = _losing(proxy, b"\0commit\0")
    job = _booking(app, coroutine=coroutine, lose=lose)

    app.run(burst=True, handle_signals=False)

    assert proxy.answers_lost == 1
    assert job.result() == 1
    assert job.info().attempts == 1
    assert numbers(own_server) == [1]
    app.close()


@pytest.mark.parametrize("coroutine", [False, True])
def test_a_commit_that_did_not_arrive_is_tried_again_as_a_whole(
    app: Packhorse, proxy: Proxy, own_server: PostgresServer, *, coroutine: bool
) -> None:
    """The answer to the completion is lost: COMMIT is not sent, and the server rolls back."""
    job = _booking(app, coroutine=coroutine, lose=_losing(proxy, b"savepoint packhorse_last_steps"))

    app.run(burst=True, handle_signals=False)

    assert proxy.answers_lost == 1
    assert job.result() == 2
    assert numbers(own_server) == [2]
    app.close()


def _losing(proxy: Proxy, words: bytes) -> Any:
    return lambda: proxy.lose_answer_to(lambda data: words in data)


def test_connections_are_users_own_and_come_back_clean(
    app: Packhorse, own_server: PostgresServer
) -> None:
    """They plan as the database says, load as psycopg does, and forget what was set in them."""
    found: list[Any] = []

    @app.task
    def look(ctx: Context) -> None:
        with ctx.transaction() as tx:
            assert isinstance(tx.connection, psycopg.Connection)
            cursor = tx.connection.execute(
                "select pg_backend_pid(), current_setting('enable_seqscan'), "
                "current_setting('search_path')"
            )
            found.append(cursor.fetchone())
            found.append(tx.connection.execute("select '[1]'::jsonb", binary=True).fetchone())
            tx.connection.execute("set search_path = pg_catalog")
            with tx.connection.transaction(force_rollback=True):
                tx.connection.execute("insert into public.rows values (1)")
            tx.connection.execute("insert into public.rows values (2)")
            tx.complete()

    for _ in range(2):
        look.enqueue()
        app.run(burst=True, handle_signals=False)

    (pid, plans, path), value = found[:2]
    assert (plans, path) == ("on", '"$user", public')
    assert value == ([1],)
    assert found[2:] == [(pid, plans, path), value]
    assert numbers(own_server) == [2, 2]
    app.close()


def test_more_handlers_than_connections_take_turns(
    app: Packhorse, own_server: PostgresServer
) -> None:
    @app.task
    async def book(ctx: Context, number: int) -> None:
        async with ctx.transaction() as tx:
            await tx.connection.execute("insert into rows values (%s)", (number,))
            tx.complete()

    jobs = [book.enqueue(number) for number in range(30)]
    app.run(burst=True, handle_signals=False, concurrency=30)

    assert {job.status() for job in jobs} == {JobStatus.COMPLETED}
    assert numbers(own_server) == list(range(30))
    app.close()


def test_a_transaction_that_the_user_ended_completes_nothing(app: Packhorse) -> None:
    @app.task(retry=RetryPolicy(max_retries=0))
    def book(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.connection.execute("commit")
            tx.complete()

    job = book.enqueue()
    app.run(burst=True, handle_signals=False)

    error = job.info().error
    assert error is not None
    assert "was ended by a statement of yours" in error.message
    app.close()


def test_what_the_server_checks_at_the_commit_undoes_it(
    app: Packhorse, own_server: PostgresServer
) -> None:
    ask(own_server.url(), "alter table rows add unique (number) deferrable initially deferred")

    @app.task(retry=RetryPolicy(max_retries=0))
    def book(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.connection.execute("insert into rows values (1), (1)")
            tx.complete()

    job = book.enqueue()
    app.run(burst=True, handle_signals=False)

    error = job.info().error
    assert error is not None
    assert error.type == "UniqueViolation"
    assert numbers(own_server) == []
    app.close()
