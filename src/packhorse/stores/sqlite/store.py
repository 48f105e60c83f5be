# SPDX-License-Identifier: MIT
"""The SQLite store: one file, several processes, no server."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from packhorse.core.clock import Clock, SystemClock
from packhorse.core.driving import adrive, drive
from packhorse.stores.intake import found_later
from packhorse.stores.plan import Plan
from packhorse.stores.sql.attachments import SqlAttachments
from packhorse.stores.sql.queues import SqlQueues
from packhorse.stores.sql.records import SqlJournal
from packhorse.stores.sql.transfer import SqlTransfer
from packhorse.stores.sql.upkeep import SqlUpkeep
from packhorse.stores.sqlite.connection import (
    Identity,
    SqliteSettings,
    connect,
    file_at,
    translated,
)
from packhorse.stores.sqlite.dialect import ONE_WRITER, SQLITE, nothing
from packhorse.stores.sqlite.intake import SqliteIntake
from packhorse.stores.sqlite.migrate import is_migrated, migrate
from packhorse.stores.sqlite.runner import PlanRunner, RunnerParts
from packhorse.stores.sqlite.threads import LocalRunner, OwnerThread
from packhorse.stores.sqlite.transactions import SqliteTransactions
from packhorse.stores.sqlite.verbs import SqliteInspection, SqliteJobs, SqliteLeases, SqliteRecords
from packhorse.stores.sqlite.wakeups import SqliteWakeups

T = TypeVar("T")


class SqliteStore:
    """See `Store`. Sync callers write in their own thread, async ones through an owner thread."""

    def __init__(self, settings: SqliteSettings, *, clock: Clock | None = None) -> None:
        self.label = f"sqlite:///{settings.path}"
        self.works_apart = False
        self.jobs = SqliteJobs()
        self.leases = SqliteLeases()
        self.queues = SqlQueues(SQLITE)
        self.upkeep = SqlUpkeep(SQLITE, nothing)
        self.inspection = SqliteInspection(SQLITE)
        self.transfer = SqlTransfer(SQLITE, nothing)
        self.attachments = SqlAttachments(SQLITE)
        self.records = SqliteRecords()
        self.journal = SqlJournal(SQLITE, lambda _: ONE_WRITER)
        self.wakeups = SqliteWakeups(settings)
        self._settings = settings
        self._clock = clock or SystemClock()
        self.intake = SqliteIntake(settings.path, self._clock, self.wakeups.send)
        self._left_to_parent: list[object] = []
        self._migrated: Identity | None = None  # the file whose schema is up to date
        self._set_up()
        _at_fork(self)

    def run(self, plan: Plan[T]) -> T:
        run = self._local.own.runner.run
        answer = run(plan)
        if plan.named is None or not plan.named.missed(answer):
            return answer
        return drive(found_later(self.intake, plan, answer), run)

    async def arun(self, plan: Plan[T]) -> T:
        answer = await (self._writer if plan.writes else self._reader).run(plan)
        if plan.named is None or not plan.named.missed(answer):
            return answer
        return await adrive(found_later(self.intake, plan, answer), self._writer.run)

    def migrate(self) -> int:
        with self._migrating:
            connection = connect(self._settings)
            try:
                return migrate(connection, self._settings.path)
            except sqlite3.Error as error:
                raise translated(error, self._settings.path) from error
            finally:
                connection.close()

    def is_there(self) -> bool:
        """Whether the file has been used by Packhorse; looking changes nothing in it."""
        return is_migrated(self._settings.path)

    def facts(self) -> dict[str, str]:
        path = self._settings.path
        kept = (
            "every commit"
            if self._settings.synchronous in ("FULL", "EXTRA")
            else ("not every commit: the last ones may be lost in a power cut, none in a crash")
        )
        return {
            "store": "sqlite",
            "file": str(path),
            "size": f"{path.stat().st_size / 1024:.0f} KiB" if path.exists() else "not there yet",
            "sqlite": sqlite3.sqlite_version,
            "schema": str(self.migrate()),
            "synchronous": self._settings.synchronous,
            "survives a power cut": kept,
            "writable": "yes" if os.access(path, os.W_OK) else "no",
        }

    def close(self) -> None:
        self._writer.close()
        self._reader.close()
        self._local.close()
        self.transactions.close()
        self.wakeups.close()

    def _set_up(self) -> None:
        """New locks and runners; nothing is opened before it is needed."""
        self._migrating = threading.RLock()
        wakeups = self.wakeups
        parts = RunnerParts(
            self._settings, self._clock, wakeups.send, wakeups.send_new, self._connect
        )
        self._local = LocalRunner(lambda: PlanRunner(parts))
        self._writer = OwnerThread("packhorse-sqlite-writer", PlanRunner(parts))
        self._reader = OwnerThread("packhorse-sqlite-reader", PlanRunner(parts))
        self.transactions = SqliteTransactions(parts, self._connect)

    def _connect(self, kind: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
        """Open a connection after bringing the schema up to date."""
        with self._migrating:
            if self._migrated is None or self._migrated != file_at(self._settings.path):
                self.migrate()
                self._migrated = file_at(self._settings.path)
        return connect(self._settings, patient=False, kind=kind)

    def hold(self) -> None:
        """Before a fork: finish the plans that run, and close every connection."""
        for part in (self._local, self._writer, self._reader, self.wakeups):
            part.hold()
        self._migrating.acquire()

    def let_go(self) -> None:
        """After a fork, in the parent: everything opens again when it is needed."""
        with suppress(RuntimeError):  # it was not held: something interrupted `hold`
            self._migrating.release()
        for part in (self.wakeups, self._reader, self._writer, self._local):
            part.let_go()

    def forget(self) -> None:
        """After a fork, in the child: threads did not come along, and locks may be theirs.

        A fork that Python does not know of may have left connections open. Closing them here would
        disturb the parent, so they are kept, unused.
        """
        sockets = self.wakeups.forget()
        ours = (self._local, self._writer, self._reader, self.transactions)
        self._left_to_parent.append((*ours, sockets))
        self._set_up()


def _at_fork(store: SqliteStore) -> None:
    """Hold the store still while this process forks, for as long as the store lives."""
    known = weakref.ref(store)

    def told(act: Callable[[SqliteStore], None]) -> Callable[[], None]:
        def call() -> None:
            found = known()
            if found is not None:
                act(found)

        return call

    os.register_at_fork(
        before=told(SqliteStore.hold),
        after_in_parent=told(SqliteStore.let_go),
        after_in_child=told(SqliteStore.forget),
    )
