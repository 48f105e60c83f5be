# SPDX-License-Identifier: MIT
"""What the tests of the SQLite store share: other processes, held locks, plans that pause."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from packhorse.core.clock import Clock
from packhorse.stores.listener import TopicListener
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.requests import ClaimRequest, Renewal
from packhorse.stores.sql.statements import NOW
from packhorse.stores.sqlite.connection import SqliteSettings
from packhorse.stores.sqlite.store import SqliteStore
from packhorse.testing.conformance.samples import ANNA, LEASE_US, QUEUE, TASK, TIMEOUT_US, new_job

#: Far longer than anything takes, so that only a hang reaches it.
PATIENCE_S: Final = 20.0
SOURCE: Final = Path(__file__).resolve().parents[2] / "src"

#: The real one, for tests that replace it.
real_connect: Final = sqlite3.connect


def sqlite_store(folder: Path, options: str = "", clock: Clock | None = None) -> SqliteStore:
    """A store of its own on the file all tests in this folder share."""
    url = f"sqlite:///{folder}/jobs.db{options}"
    return SqliteStore(SqliteSettings.from_url(url), clock=clock)


def submitting(store: SqliteStore, *names: str) -> Plan[Any]:
    return store.jobs.submit([new_job(name) for name in names])


def claiming(*, limit: int = 10, queue: str = QUEUE) -> ClaimRequest:
    return ClaimRequest(
        worker=ANNA, queues=(queue,), tasks=(TASK,), limit=limit, default_timeout_us=TIMEOUT_US
    )


def renewing() -> Renewal:
    return Renewal(ANNA, LEASE_US, queues=(QUEUE,), tasks=(TASK,))


def names_in(folder: Path) -> set[str]:
    """The ids of the jobs in the file, read by a stranger."""
    with closing(real_connect(folder / "jobs.db")) as connection:
        return {name for (name,) in connection.execute("select id from packhorse_jobs")}


@contextmanager
def write_lock(folder: Path) -> Iterator[sqlite3.Connection]:
    """Another connection holds the write lock meanwhile."""
    other = real_connect(folder / "jobs.db", isolation_level=None, check_same_thread=False)
    other.execute("begin immediate")
    try:
        yield other
    finally:
        other.close()


def can_write(folder: Path) -> bool:
    """Whether a stranger gets the write lock at once."""
    with closing(real_connect(folder / "jobs.db", timeout=0, isolation_level=None)) as other:
        try:
            other.execute("begin immediate")
        except sqlite3.OperationalError:
            return False
        return True


@dataclass
class Pause:
    """A plan that stops in the middle of its transaction until it is told to go on."""

    begun: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def plan(self) -> Plan[str]:
        return Plan("pause", self._steps)

    def _steps(self) -> Steps[str]:
        yield NOW
        self.begun.set()
        assert self.go_on.wait(PATIENCE_S)
        return "went on"

    async def begin(self, store: SqliteStore) -> asyncio.Task[str]:
        """Keep the owner thread busy, so that what comes now waits together."""
        task = asyncio.create_task(store.arun(self.plan()))
        assert await asyncio.to_thread(self.begun.wait, PATIENCE_S)
        return task


async def waiting(store: SqliteStore, plans: Sequence[Plan[Any]]) -> list[asyncio.Task[Any]]:
    """Plans that wait for the owner thread, in this order."""
    tasks = [asyncio.create_task(store.arun(plan)) for plan in plans]
    await asyncio.sleep(0)
    return tasks


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that sends no signal."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


async def heard_by(listener: TopicListener, topic: str) -> bool:
    """Whether the topic itself is heard, and not only that something changed."""
    async with asyncio.timeout(PATIENCE_S):
        while heard := await listener.wait(PATIENCE_S):
            if topic in heard:
                return True
    return False


@dataclass
class Traced:
    """Every statement that reaches SQLite, in order, in small letters."""

    statements: list[str] = field(default_factory=list)

    def connect(self, *arguments: Any, **options: Any) -> sqlite3.Connection:
        """In place of `sqlite3.connect`."""
        connection: sqlite3.Connection = real_connect(*arguments, **options)
        connection.set_trace_callback(lambda text: self.statements.append(text.lower()))
        return connection

    def count(self, word: str) -> int:
        return sum(statement.startswith(word) for statement in self.statements)
