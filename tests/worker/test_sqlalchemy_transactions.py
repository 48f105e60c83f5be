# SPDX-License-Identifier: MIT
"""SQLAlchemy on top of `ctx.transaction()`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from packhorse import Context, JobStatus, RetryPolicy, UsageError
from packhorse.core.clock import new_id
from packhorse.testing import TestApp
from tests.servers.postgres import postgres_url


@pytest.fixture(params=["sqlite", "postgres"])
def packhorse_url(request: pytest.FixtureRequest) -> str:
    return postgres_url() if request.param == "postgres" else "sqlite://"


@pytest.fixture
def places(packhorse_app: TestApp) -> Iterator[tuple[Table, str]]:
    """A table of the user's own, and how SQLAlchemy reaches it otherwise."""
    label = packhorse_app.store.label
    url = label
    if not label.startswith("sqlite"):
        url = postgres_url().replace("postgresql://", "postgresql+psycopg://")
    table = Table(f"t_{new_id().replace('-', '')}", MetaData(), Column("number", Integer))
    engine = create_engine(url)
    table.create(engine)
    yield table, url
    table.drop(engine)
    engine.dispose()


def test_sessions_and_connections_write_in_it(
    packhorse_app: TestApp, places: tuple[Table, str]
) -> None:
    table, url = places

    @packhorse_app.task(retry=RetryPolicy(initial_delay="1s"))
    def book(ctx: Context) -> None:
        with ctx.transaction() as tx:
            connection = tx.sqlalchemy()
            connection.execute(insert(table).values(number=ctx.job.attempt))
            with Session(connection, join_transaction_mode="create_savepoint") as session:
                session.execute(insert(table).values(number=10))
                session.commit()
                session.execute(insert(table).values(number=20))
                session.rollback()
            end = connection.commit if ctx.job.attempt == 1 else connection.rollback
            with pytest.raises(UsageError, match="when its block ends"):
                end()
            if ctx.job.attempt == 1:
                raise ValueError
            tx.complete()
        assert connection.closed

    job = book.enqueue()
    packhorse_app.run_jobs()

    assert job.status() is JobStatus.COMPLETED, job.info().error
    assert _numbers(table, url) == [2, 10]


@pytest.mark.parametrize("packhorse_url", ["postgres"], indirect=True)
def test_coroutines_have_an_awaited_one(packhorse_app: TestApp, places: tuple[Table, str]) -> None:
    table, url = places

    @packhorse_app.task(retry=RetryPolicy(initial_delay="1s"))
    async def book(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            with pytest.raises(UsageError, match="asqlalchemy"):
                tx.sqlalchemy()
            connection = await tx.asqlalchemy()
            assert await tx.asqlalchemy() is connection
            await connection.execute(insert(table).values(number=ctx.job.attempt))
            async with AsyncSession(
                connection, join_transaction_mode="create_savepoint"
            ) as session:
                await session.execute(insert(table).values(number=10))
                await session.commit()
                await session.execute(insert(table).values(number=20))
                await session.rollback()
            end = connection.commit if ctx.job.attempt == 1 else connection.rollback
            with pytest.raises(UsageError, match="when its block ends"):
                await end()
            if ctx.job.attempt == 1:
                raise ValueError
            tx.complete()
        assert connection.closed

    job = book.enqueue()
    packhorse_app.run_jobs()

    assert job.status() is JobStatus.COMPLETED, job.info().error
    assert _numbers(table, url) == [2, 10]


@pytest.mark.parametrize("packhorse_url", ["sqlite://"], ids=["sqlite"])
def test_coroutines_on_sqlite_have_one_that_is_not_awaited(
    packhorse_app: TestApp, places: tuple[Table, str]
) -> None:
    table, url = places

    @packhorse_app.task
    async def book(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            with pytest.raises(UsageError, match=r"use tx\.sqlalchemy"):
                await tx.asqlalchemy()
            connection = tx.sqlalchemy()
            connection.execute(insert(table).values(number=1))
            tx.complete()
        assert connection.closed

    job = book.enqueue()
    packhorse_app.run_jobs()

    assert job.status() is JobStatus.COMPLETED, job.info().error
    assert _numbers(table, url) == [1]


def _numbers(table: Table, url: str) -> list[int]:
    engine = create_engine(url)
    with engine.connect() as looking:
        numbers = sorted(looking.execute(select(table.c.number)).scalars())
    engine.dispose()
    return numbers
