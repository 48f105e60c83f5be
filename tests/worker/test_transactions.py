# SPDX-License-Identifier: MIT
"""`ctx.transaction()`: a handler's rows and the end of its job, both there or neither."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from packhorse import (
    Context,
    Contract,
    JobStatus,
    Packhorse,
    RetryPolicy,
    TransactionRefused,
    Unique,
    UsageError,
)
from packhorse.core.clock import new_id
from packhorse.core.settlement import Settlement, SettlementKind
from packhorse.events import Event, JobCompleted
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.testing import TestApp, make_context, use
from tests.servers.postgres import postgres_url
from tests.servers.redis import redis_url


@pytest.fixture(params=["sqlite", "postgres"])
def packhorse_url(request: pytest.FixtureRequest) -> str:
    """The stores that rows lie beside; this overrides the plugin's own."""
    return postgres_url() if request.param == "postgres" else "sqlite://"


class Table:
    """A table of the user's own, in the store's database."""

    def __init__(self, app: TestApp, name: str) -> None:
        label, self.name = app.store.label, name
        self.jobs = "packhorse_jobs"
        if "schema=" in label:
            self.jobs = f"{label.rpartition('schema=')[2]}.jobs"
        self._url = label if label.startswith("sqlite") else postgres_url()
        self.does("create table {0} (number integer)")
        self.insert = f"insert into {name} values ({'?' if self._lies_in_file else '%s'})"

    @property
    def _lies_in_file(self) -> bool:
        return self._url.startswith("sqlite")

    def does(self, text: str) -> list[Any]:
        statement = text.format(self.name)
        if self._lies_in_file:
            path = self._url.removeprefix("sqlite:///")
            with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as file:
                return file.execute(statement).fetchall()
        conninfo = PostgresSettings.from_url(self._url).conninfo
        with psycopg.connect(conninfo, autocommit=True) as server:
            cursor = server.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    @property
    def numbers(self) -> list[int]:
        return [number for (number,) in self.does("select number from {0} order by number")]


@pytest.fixture
def table(packhorse_app: TestApp) -> Iterator[Table]:
    made = Table(packhorse_app, f"rows_{new_id().replace('-', '')}")
    yield made
    made.does("drop table {0}")


#: How long a finished job and its result are kept, and what it holds.
_KEPT = """
    expires_us - finished_us, record_until_us - finished_us, result_until_us - finished_us,
    lane, line, order_line, hold_us, settled, cast(suspect as integer), cast(alone as integer)
"""
Once = RetryPolicy(max_retries=0)


# --------------------------------------------------------------------------------- what it does


def test_rows_and_completion_come_together(packhorse_app: TestApp, table: Table) -> None:
    seen: list[object] = []

    @packhorse_app.task
    def book(ctx: Context, number: int) -> dict[str, int]:
        with ctx.transaction() as tx:
            tx.connection.execute(table.insert, (number,))
            seen.extend((packhorse_app.job(ctx.job.id).status(), table.numbers))
            tx.complete({"booked": number})
        seen.extend((packhorse_app.job(ctx.job.id).status(), table.numbers))
        return {"not": 0}

    job = book.enqueue(7)
    assert packhorse_app.run_jobs() == 1

    assert seen == [JobStatus.PROCESSING, [], JobStatus.COMPLETED, [7]]
    assert job.result() == {"booked": 7}
    assert table.numbers == [7]


def test_coroutines_have_it_too(packhorse_app: TestApp, table: Table) -> None:
    @packhorse_app.task
    async def book(ctx: Context, number: int) -> dict[str, int]:
        async with ctx.transaction() as tx:
            assert isinstance(tx.connection, (sqlite3.Connection, psycopg.AsyncConnection))
            await written(tx.connection.execute(table.insert, (number,)))
            tx.complete({"booked": number})
        return {}

    jobs = [book.enqueue(number) for number in range(12)]
    packhorse_app.run_jobs()

    assert [job.result() for job in jobs] == [{"booked": number} for number in range(12)]
    assert table.numbers == list(range(12))


def test_it_is_written_as_any_other_completion(packhorse_app: TestApp, table: Table) -> None:
    """Record and history, save times and names, are those of a result that was returned."""

    @packhorse_app.task(result_ttl="1h", unique=Unique())
    def plain(number: int) -> int:
        return number

    @packhorse_app.task(result_ttl="1h", unique=Unique())
    def booked(ctx: Context, number: int) -> int:
        ctx.progress(3, 4, "nearly")
        with ctx.transaction() as tx:
            tx.complete(number)
        return 0

    told: list[Event] = []
    packhorse_app.on(JobCompleted)(told.append)
    one, other = plain.enqueue(5), booked.enqueue(5)
    packhorse_app.run_jobs()

    expected, found = one.info(), other.info()
    fields = (
        *("status", "attempts", "failures", "crashes", "releases", "fence", "error", "due_at"),
        *("dead_reason", "queue"),
    )
    for field in fields:
        assert getattr(found, field) == getattr(expected, field), field
    assert [line.status for line in other.history()] == [line.status for line in one.history()]
    assert one.result() == other.result() == 5
    assert {event.job_id for event in told} == {one.id, other.id}  # type: ignore[attr-defined]
    progress = other.progress()
    assert progress is not None
    assert progress.note == "nearly"
    kept = table.does(f"select {_KEPT} from {table.jobs} where id in ('{one.id}', '{other.id}')")
    assert len(kept) == 2
    assert kept[0] == kept[1]
    assert not booked.enqueue(5).deduplicated  # its key is free


def test_the_end_lets_others_go(packhorse_app: TestApp, table: Table) -> None:
    """Limits, lines of order and waiting keys hear of it."""
    packhorse_app.queue("narrow", concurrency=1)

    @packhorse_app.task(queue="narrow")
    def booked(ctx: Context, number: int) -> None:
        with ctx.transaction() as tx:
            tx.connection.execute(table.insert, (number,))
            tx.complete()

    jobs = [booked.using(ordering_key="one").enqueue(number) for number in range(4)]
    packhorse_app.run_jobs()

    assert [job.status() for job in jobs] == [JobStatus.COMPLETED] * 4
    assert table.numbers == [0, 1, 2, 3]


# ------------------------------------------------------------------------------ what undoes it


def test_what_is_raised_in_the_block_undoes_it_and_is_tried_again(
    packhorse_app: TestApp, table: Table
) -> None:
    @packhorse_app.task
    def book(ctx: Context) -> int:
        with ctx.transaction() as tx:
            tx.connection.execute(table.insert, (ctx.job.attempt,))
            tx.complete(ctx.job.attempt)
            if ctx.job.attempt == 1:
                raise ValueError
        return 0

    job = book.enqueue()
    packhorse_app.run_jobs()

    assert job.result() == 2
    assert table.numbers == [2]


def test_a_block_without_completion_is_undone(packhorse_app: TestApp, table: Table) -> None:
    @packhorse_app.task(retry=Once)
    def book(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.connection.execute(table.insert, (1,))

    job = book.enqueue()
    packhorse_app.run_jobs()

    assert table.numbers == []
    assert "without tx.complete(result)" in (job.info().error or "").__str__()


def test_a_block_that_was_undone_may_be_followed_by_another(
    packhorse_app: TestApp, table: Table
) -> None:
    @packhorse_app.task
    def book(ctx: Context) -> None:
        for number in (1, 2):
            with contextlib.suppress(ValueError), ctx.transaction() as tx:
                tx.connection.execute(table.insert, (number,))
                tx.complete()
                if number == 1:
                    raise ValueError

    job = book.enqueue()
    packhorse_app.run_jobs()

    assert job.status() is JobStatus.COMPLETED
    assert table.numbers == [2]


def test_a_cancel_undoes_it(packhorse_app: TestApp, table: Table) -> None:
    refused: list[BaseException] = []

    @packhorse_app.task
    def book(ctx: Context) -> None:
        packhorse_app.job(ctx.job.id).cancel()  # this worker does not know of it yet
        try:
            with ctx.transaction() as tx:
                tx.connection.execute(table.insert, (1,))
                tx.complete()
        except TransactionRefused as error:
            refused.append(error)
            raise

    job = book.enqueue()
    packhorse_app.run_jobs()

    assert job.status() is JobStatus.CANCELLED
    assert table.numbers == []
    assert len(refused) == 1


def test_a_lost_fence_undoes_it(packhorse_app: TestApp, table: Table) -> None:
    """Others were given the job: the block ends with an error, and the next attempt counts."""
    refused: list[TransactionRefused] = []

    @packhorse_app.task
    def book(ctx: Context) -> int:
        if ctx.job.attempt == 1:
            lost = Settlement(
                *(ctx.job.id, ctx.job.fence, SettlementKind.RELEASED, JobStatus.PENDING),
                keep_place=True,
            )
            packhorse_app.store.run(packhorse_app.store.jobs.settle([lost]))
        try:
            with ctx.transaction() as tx:
                tx.connection.execute(table.insert, (ctx.job.attempt,))
                tx.complete(ctx.job.attempt)
        except TransactionRefused as error:
            refused.append(error)
            raise
        return 0

    job = book.enqueue()
    packhorse_app.run_jobs()

    assert [error.job_id for error in refused] == [job.id]
    assert job.result() == 2
    assert table.numbers == [2]


def test_a_coroutine_that_is_cancelled_in_its_block_leaves_no_row(
    packhorse_app: TestApp, table: Table
) -> None:
    @packhorse_app.task
    async def book(ctx: Context) -> int:
        async with ctx.transaction() as tx:
            await written(tx.connection.execute(table.insert, (ctx.job.attempt,)))
            tx.complete(ctx.job.attempt)
            if ctx.job.attempt == 1:
                this_task().cancel()
                await asyncio.Event().wait()
        return 0

    job = book.enqueue()
    packhorse_app.run_jobs()

    assert job.result() == 2
    assert table.numbers == [2]


def test_a_commit_that_has_begun_is_not_cancelled(packhorse_app: TestApp, table: Table) -> None:
    @packhorse_app.task
    async def book(ctx: Context) -> int:
        async with ctx.transaction() as tx:
            await written(tx.connection.execute(table.insert, (ctx.job.attempt,)))
            tx.complete(ctx.job.attempt)
            asyncio.get_running_loop().call_soon(this_task().cancel)
        raise AssertionError("it was cancelled meanwhile")

    job = book.enqueue()
    packhorse_app.run_jobs()

    assert job.result() == 1
    assert table.numbers == [1]


def this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def written(done: Any) -> None:
    """What psycopg does in a coroutine is awaited, what SQLite does is not."""
    if not isinstance(done, sqlite3.Cursor):
        await done


def test_a_result_that_breaks_the_contract_undoes_it(packhorse_app: TestApp, table: Table) -> None:
    contract = Contract(outputs={"type": "integer"}, on_invalid_output="dead")

    @packhorse_app.task(contract=contract)
    def book(ctx: Context) -> Any:
        with ctx.transaction() as tx:
            tx.connection.execute(table.insert, (1,))
            tx.complete("many")

    @packhorse_app.task(retry=RetryPolicy(max_retries=1))
    def annotated(ctx: Context) -> dict[str, int]:
        with ctx.transaction() as tx:
            tx.connection.execute(table.insert, (1,))
            tx.complete("many")
        return {}

    jobs = book.enqueue(), annotated.enqueue()
    packhorse_app.run_jobs()

    assert table.numbers == []
    assert [job.status() for job in jobs] == [JobStatus.DEAD, JobStatus.DEAD]
    assert [job.info().attempts for job in jobs] == [1, 2]
    for job in jobs:
        error = job.info().error
        assert error is not None
        assert error.code == "INVALID_OUTPUT"


# ------------------------------------------------------------------------------------ around it


def test_what_is_raised_after_the_block_is_a_line_of_the_log(
    packhorse_app: TestApp, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    @packhorse_app.task
    def book(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.connection.execute(table.insert, (1,))
            tx.complete()
        raise ValueError("too late")

    job = book.enqueue()
    with caplog.at_level(logging.WARNING, "packhorse.worker"):
        packhorse_app.run_jobs()

    assert job.status() is JobStatus.COMPLETED
    assert job.info().attempts == 1
    assert "ValueError: too late" in caplog.text


def test_misuse_is_told(packhorse_app: TestApp, table: Table) -> None:
    told: dict[str, str] = {}

    def tried(name: str, act: Callable[[], object]) -> None:
        with pytest.raises((UsageError, sqlite3.DatabaseError)) as caught:
            act()
        told[name] = str(caught.value)

    def twice(ctx: Context) -> None:
        with ctx.transaction():
            pass

    @packhorse_app.task
    async def wait(ctx: Context) -> None:
        tried("async", lambda: twice(ctx))

    @packhorse_app.task
    def book(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tried("nested", lambda: twice(ctx))
            tried("commit", tx.connection.commit)
            tx.connection.execute(table.insert, (1,))
            tried("rollback", tx.connection.rollback)
            tx.complete()
            tried("completed", tx.complete)
        tried("second", lambda: twice(ctx))
        tried("after", lambda: tx.connection)

    job, _ = book.enqueue(), wait.enqueue()
    packhorse_app.run_jobs()

    assert job.status() is JobStatus.COMPLETED, job.info().error
    assert table.numbers == [1]
    assert len(told) == 7
    assert "use 'async with'" in told["async"]


@pytest.mark.parametrize("packhorse_url", ["memory://", "redis"], indirect=False)
def test_stores_without_rows_say_what_to_use(packhorse_url: str) -> None:
    with use(Packhorse(redis_url() if packhorse_url == "redis" else packhorse_url)) as app:

        @app.task(retry=Once)
        def book(ctx: Context) -> None:
            with ctx.transaction():
                pass

        job = book.enqueue()
        app.run_jobs()

        error = job.info().error
        assert error is not None
        assert "keep jobs in PostgreSQL or SQLite, or use ctx.step()" in error.message


def test_a_handler_that_is_called_directly_has_none() -> None:
    with pytest.raises(UsageError, match="no job"):
        make_context().transaction()


def test_steps_and_submits_travel_beside_it(packhorse_app: TestApp, table: Table) -> None:
    """On PostgreSQL; SQLite has one writer, and says so instead of waiting for itself."""
    told: list[str] = []

    @packhorse_app.task
    def book(ctx: Context) -> int:
        with ctx.transaction() as tx:
            tx.connection.execute(table.insert, (1,))
            try:
                told.append(ctx.step("beside", lambda: "kept"))
            except UsageError as error:
                told.append(str(error))
            tx.complete(1)
        return 0

    job = book.enqueue()
    packhorse_app.run_jobs()

    assert job.result() == 1
    kept = "SQLite keeps no steps" if "sqlite" in packhorse_app.store.label else "kept"
    assert told[0].startswith(kept)


def test_submits_join_it(packhorse_app: TestApp, table: Table) -> None:
    ran: list[int] = []

    @packhorse_app.task
    def mail(number: int) -> None:
        ran.append(number)

    @packhorse_app.task
    def book(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.connection.execute(table.insert, (ctx.job.attempt,))
            mail.using(tx=tx.connection).enqueue(ctx.job.attempt)
            tx.complete()
            if ctx.job.attempt == 1:
                raise ValueError

    @packhorse_app.task
    async def abook(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await written(tx.connection.execute(table.insert, (ctx.job.attempt + 10,)))
            await mail.using(tx=tx.connection).aenqueue(ctx.job.attempt + 10)
            tx.complete()
            if ctx.job.attempt == 1:
                raise ValueError

    jobs = book.enqueue(), abook.enqueue()
    packhorse_app.run_jobs()

    assert [job.status() for job in jobs] == [JobStatus.COMPLETED] * 2, jobs[1].info().error
    assert table.numbers == [2, 12]
    assert sorted(ran) == [2, 12]
