# SPDX-License-Identifier: MIT
"""SQLAlchemy on top of `ctx.transaction()`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert, select
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

    engine = create_engine(url)
    with engine.connect() as looking:
        numbers = sorted(looking.execute(select(table.c.number)).scalars())
    engine.dispose()
    assert job.status() is JobStatus.COMPLETED, job.info().error
    assert numbers == [2, 10]
