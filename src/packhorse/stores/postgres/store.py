# SPDX-License-Identifier: MIT
"""The PostgreSQL store: one schema of a database, any number of machines."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from psycopg import Connection, Error

from packhorse.clock import Clock
from packhorse.errors import PackhorseError
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.postgres.dialect import POSTGRES
from packhorse.stores.postgres.errors import translated
from packhorse.stores.postgres.facts import facts
from packhorse.stores.postgres.floors import FLOOR_TOPIC
from packhorse.stores.postgres.jobs import PostgresJobs
from packhorse.stores.postgres.leases import PostgresLeases
from packhorse.stores.postgres.link import AsyncLink, SyncLink, Timeouts, new_connection
from packhorse.stores.postgres.listening import Hearing
from packhorse.stores.postgres.migrate import (
    known_version,
    migrate,
    migration_script,
    schema_version,
)
from packhorse.stores.postgres.pool import AsyncPool, LoopPools, SyncPool
from packhorse.stores.postgres.runner import AsyncRunner, Lanes, SyncRunner
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.stores.postgres.statements import Rows
from packhorse.stores.postgres.talk import NOTIFY, Shared
from packhorse.stores.postgres.texts import Texts
from packhorse.stores.postgres.wakeups import Notices, PostgresWakeups, channel_of, short
from packhorse.stores.postgres.wire import Call, converse
from packhorse.stores.sql.inspection import SqlInspection
from packhorse.stores.sql.queues import SqlQueues
from packhorse.stores.sql.transfer import SqlTransfer
from packhorse.stores.sql.upkeep import SqlUpkeep

__all__ = ["PostgresStore"]

T = TypeVar("T")

#: Short topics after which claims look from the front again; `*` stands for any.
_PASSED: Final = frozenset({short(FLOOR_TOPIC), "*"})


class PostgresStore:
    """See `Store`. Threads and event loops each have connections of their own."""

    def __init__(self, settings: PostgresSettings, *, clock: Clock | None = None) -> None:
        self.label = settings.label
        self.jobs = PostgresJobs()
        self.leases = PostgresLeases(self.jobs.floors)
        self.queues = SqlQueues(POSTGRES)
        self.upkeep = SqlUpkeep(POSTGRES, self.jobs.floors.give_up)
        self.inspection = SqlInspection(POSTGRES)
        self.transfer = SqlTransfer(POSTGRES, self.jobs.floors.give_up)
        self.wakeups = PostgresWakeups(self._new_hearing)
        self._settings = settings
        self._clock = clock
        self._channel = channel_of(settings.schema, settings.prefix)
        self._texts = Texts(settings.schema, settings.prefix)
        self._timeouts = Timeouts()
        self._migrated = False
        self._left_to_parent: list[object] = []
        self._set_up()
        _at_fork(self)

    def run(self, plan: Plan[T]) -> T:
        if not self._migrated:
            self._make_ready()
        return self._sync.run(plan)

    async def arun(self, plan: Plan[T]) -> T:
        if not self._migrated:
            await asyncio.to_thread(self._make_ready)
        return await self._async.run(plan)

    def migrate(self) -> int:
        with self._migrating:
            version = self._look_at_schema()
            if version != known_version():
                with self._plainly() as connection:
                    version = migrate(connection, self._settings)
            self._migrated = True
            return version

    def migration_sql(self) -> str:
        """What `migrate` would run on an empty database, for those who may not run it."""
        return self._texts.rendered(migration_script())

    def is_there(self) -> bool:
        """Whether the schema exists; looking creates nothing."""
        with self._plainly() as connection:
            return schema_version(connection, self._settings) > 0

    def facts(self) -> dict[str, str]:
        with self._plainly() as connection:
            found = facts(connection, self._settings)
        return {**found, "wake-ups": self.wakeups.state}

    def close(self) -> None:
        self._notices.flush()
        self.wakeups.close()
        self._lanes.close()

    def _set_up(self) -> None:
        """New locks and pools; nothing is opened before it is needed."""
        settings = self._settings
        self._migrating = threading.RLock()
        self._lanes = Lanes(
            hot=self._sync_pool(settings.hot_pool),
            other=self._sync_pool(settings.pool),
            hot_async=LoopPools(lambda: self._async_pool(settings.hot_pool)),
            other_async=LoopPools(lambda: self._async_pool(settings.pool)),
        )
        self._notices = Notices(self._tell)
        shared = Shared(
            settings=settings,
            texts=self._texts,
            clock=self._clock,
            channel=self._channel,
            due=self._notices.due,
            timeouts_hold=lambda: self._timeouts.by_startup,
        )
        self._sync = SyncRunner(self._lanes, shared, self._stop_preparing)
        self._async = AsyncRunner(self._lanes, shared, self._stop_preparing)

    def _sync_pool(self, size: int) -> SyncPool:
        def opened() -> SyncLink:
            return SyncLink(new_connection(self._settings, self._timeouts), self._settings)

        return SyncPool(opened, size=size, patience_s=self._settings.connect_timeout_s)

    def _async_pool(self, size: int) -> AsyncPool:
        async def opened() -> AsyncLink:
            return await AsyncLink.open(self._settings, self._timeouts)

        return AsyncPool(opened, size=size, patience_s=self._settings.connect_timeout_s)

    def _new_hearing(self, deserted: Any) -> Hearing:
        return Hearing(
            self._listening_connection, self._channel, self._tell, self._noticed, deserted
        )

    def _noticed(self, names: frozenset[str]) -> None:
        """Somebody went back to a place that claims have passed, or may have unheard."""
        if not _PASSED.isdisjoint(names):
            self.jobs.forget_floors()

    def _listening_connection(self) -> Connection[Any]:
        settings = self._settings
        if settings.listen_conninfo is not None:
            settings = dataclasses.replace(settings, conninfo=settings.listen_conninfo)
        return new_connection(settings, self._timeouts)

    def _tell(self, payloads: Sequence[str]) -> None:
        """Send wake-ups that had to wait. What cannot be delivered is left to the floor."""
        statement = self._texts.statement(NOTIFY)
        calls = [Call(statement, (self._channel, payload)) for payload in payloads]
        with suppress(Error, PackhorseError):
            link, era = self._lanes.other.take()
            try:
                link.drive(converse(link.line, [calls]))
            finally:
                self._lanes.other.give(link, era)

    def _make_ready(self) -> None:
        """Before the first plan: a schema that fits."""
        with self._migrating:
            if not self._migrated:
                self.migrate()

    def _look_at_schema(self) -> int:
        """Its version, by the connection that will be needed anyway; 0 if there is none."""
        found = self._sync.run(Plan("schema", _schema_steps, writes=False))
        return found or 0

    def _plainly(self) -> _Plainly:
        return _Plainly(self._settings, self._timeouts)

    def _stop_preparing(self) -> None:
        """A pooler does not keep statements prepared: do without, from now on."""
        self._settings = dataclasses.replace(self._settings, prepare=False)
        self._lanes.close()

    def forget(self) -> None:
        """After a fork, in the child: threads did not come along, and connections are not ours.

        To close them here would end the parent's sessions, so they are kept, unused.
        """
        hearing = self.wakeups.forget()
        self._left_to_parent.append((self._lanes, self._notices, hearing))
        self._set_up()


class _Plainly:
    """A connection of psycopg for a moment; its trouble is told in Packhorse's words."""

    def __init__(self, settings: PostgresSettings, timeouts: Timeouts) -> None:
        self._settings = settings
        self._timeouts = timeouts
        self._connection: Connection[Any] | None = None

    def __enter__(self) -> Connection[Any]:
        try:
            self._connection = new_connection(self._settings, self._timeouts)
        except Error as error:
            raise translated(error, self._settings) from error
        return self._connection

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._connection is not None:
            self._connection.close()
        if isinstance(error, Error):
            raise translated(error, self._settings) from error


def _schema_steps() -> Steps[int | None]:
    [(there,)] = yield Rows("select to_regclass('{schema_version}') is not null")
    if not there:
        return None
    rows = yield Rows("select version::bigint from {schema_version}")
    return rows[0][0] if rows else None


def _at_fork(store: PostgresStore) -> None:
    """Let the store begin anew in the child of a fork, for as long as it lives."""
    known = weakref.ref(store)

    def forget() -> None:
        found = known()
        if found is not None:
            found.forget()

    os.register_at_fork(after_in_child=forget)
