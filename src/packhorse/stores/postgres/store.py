# SPDX-License-Identifier: MIT
"""The PostgreSQL store: one schema of a database, any number of machines."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Final, TypeVar

from psycopg import Connection, Error

from packhorse.core.clock import Clock
from packhorse.core.generators import adrive, drive
from packhorse.core.interpreter import at_fork
from packhorse.errors import PackhorseError
from packhorse.stores.intake import INTAKE_TOPIC, found_later
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.postgres.connection import (
    LoopConnection,
    StartupOptions,
    ThreadConnection,
    plain_arguments,
)
from packhorse.stores.postgres.dialect import POSTGRES
from packhorse.stores.postgres.errors import translated
from packhorse.stores.postgres.floors import FLOOR_TOPIC
from packhorse.stores.postgres.intake import PostgresIntake
from packhorse.stores.postgres.leases import PostgresLeases
from packhorse.stores.postgres.migrate import (
    known_version,
    migrate,
    migration_script,
    schema_version,
)
from packhorse.stores.postgres.pipeline import Command, exchange
from packhorse.stores.postgres.plan_transaction import NOTIFY, StoreContext
from packhorse.stores.postgres.pool import AsyncPool, ConnectionOpener, LoopPools, SyncPool
from packhorse.stores.postgres.rendering import Texts
from packhorse.stores.postgres.runner import AsyncRunner, Pools, SyncRunner
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.stores.postgres.transactions import LentToLoop, LentToThread, PostgresTransactions
from packhorse.stores.postgres.verbs import PostgresAttachments, PostgresJobs, keys_of
from packhorse.stores.postgres.wakeups import (
    Due,
    ListenerThread,
    Notices,
    PostgresWakeups,
    channel_of,
    short,
)
from packhorse.stores.sql.inspection import SqlInspection
from packhorse.stores.sql.queues import SqlQueues
from packhorse.stores.sql.records import SqlJournal, SqlRecords
from packhorse.stores.sql.statements import Rows
from packhorse.stores.sql.transfer import SqlTransfer
from packhorse.stores.sql.upkeep import SqlUpkeep

T = TypeVar("T")

#: How long to wait for a connection to send wake-ups that had to wait.
_NOTIFY_S: Final = 1.0
#: After this, shortened, claims sweep below the floors again.
_BELOW: Final = short(FLOOR_TOPIC)


class PostgresStore:
    """See `Store`. Threads and event loops each have connections of their own."""

    def __init__(self, settings: PostgresSettings, *, clock: Clock | None = None) -> None:
        self.label = settings.label
        self.works_apart = True
        self.jobs = PostgresJobs()
        self.leases = PostgresLeases()
        self.queues = SqlQueues(POSTGRES)
        self.upkeep = SqlUpkeep(POSTGRES)
        self.inspection = SqlInspection(POSTGRES)
        self.transfer = SqlTransfer(POSTGRES)
        self.attachments = PostgresAttachments()
        self.records = SqlRecords(POSTGRES, self.jobs.locks_for)
        self.journal = SqlJournal(POSTGRES, self.jobs.locks_for)
        self.wakeups = PostgresWakeups(self._new_listener_thread)
        self._settings = settings
        self._clock = clock
        self._channel = channel_of(settings.schema, settings.prefix)
        self._texts = Texts(settings.schema, settings.prefix)
        self.intake = PostgresIntake(
            *(self._rendered, self.jobs.new_locks, keys_of),
            tell=self._tell_later,
            notice=f"select pg_notify('{self._channel}', '{short(INTAKE_TOPIC)}')",
        )
        self._options = StartupOptions()
        self._migrated = False
        self._left_to_parent: list[object] = []
        self._set_up()
        at_fork(self.after_fork_in_child)

    def run(self, plan: Plan[T]) -> T:
        if not self._migrated:
            self._make_ready()
        answer = self._sync.run(plan)
        if plan.named is None or not plan.named.missed(answer):
            return answer
        return drive(found_later(self.intake, plan, answer), self._sync.run)

    async def arun(self, plan: Plan[T]) -> T:
        if not self._migrated:
            await asyncio.to_thread(self._make_ready)
        answer = await self._async.run(plan)
        if plan.named is None or not plan.named.missed(answer):
            return answer
        return await adrive(found_later(self.intake, plan, answer), self._async.run)

    def migrate(self) -> int:
        with self._migrating:
            version = self._look_at_schema()
            if version != known_version():
                with self._plain_connection() as connection:
                    version = migrate(connection, self._settings)
            self._migrated = True
            return version

    def migration_sql(self) -> str:
        """What `migrate` would run on an empty database, for those who may not run it."""
        return self._texts.rendered(migration_script())

    def is_there(self) -> bool:
        """Whether the schema exists; looking creates nothing."""
        with self._plain_connection() as connection:
            return schema_version(connection, self._settings) > 0

    def facts(self) -> dict[str, str]:
        with self._plain_connection() as connection:
            found = _facts(connection, self._settings)
        return {**found, "wake-ups": self.wakeups.state}

    def close(self) -> None:
        self._notices.close()
        self.wakeups.close()
        self._pools.close()
        for pool in self._own:
            pool.close()

    def _set_up(self) -> None:
        """New locks and pools; nothing is opened before it is needed."""
        settings = self._settings
        self._migrating = threading.RLock()
        self._opener = ConnectionOpener(settings.connect_timeout_s)
        self._pools = Pools(
            hot=self._sync_pool(settings.hot_pool),
            other=self._sync_pool(settings.pool),
            hot_async=LoopPools(lambda: self._async_pool(settings.hot_pool)),
            other_async=LoopPools(lambda: self._async_pool(settings.pool)),
        )
        own = dataclasses.replace(settings, prepare=False)  # users' connections are not for that
        self._own = self._own_pools(own)
        self._opener.close_idle = self._close_idle
        self._opener.stop_listening = self.wakeups.pause
        self._notices = Notices(self._notify)
        context = StoreContext(
            settings=settings,
            texts=self._texts,
            clock=self._clock,
            channel=self._channel,
            due=self._due,
            later=self._notices.later,
            settings_hold=lambda: self._options.hold,
        )
        self.transactions = PostgresTransactions(*self._own, context)
        self._sync = SyncRunner(self._pools, context, self._stop_preparing)
        self._async = AsyncRunner(self._pools, context, self._stop_preparing)

    def _sync_pool(self, size: int) -> SyncPool:
        def connect() -> ThreadConnection:
            return ThreadConnection(self._options.connect(self._settings), self._settings)

        patience_s = self._settings.connect_timeout_s
        return SyncPool(connect, self._opener, size=size, patience_s=patience_s)

    def _async_pool(self, size: int) -> AsyncPool:
        async def connect() -> LoopConnection:
            return LoopConnection(await self._options.aconnect(self._settings), self._settings)

        patience_s = self._settings.connect_timeout_s
        return AsyncPool(connect, self._opener, size=size, patience_s=patience_s)

    def _own_pools(self, settings: PostgresSettings) -> tuple[SyncPool, LoopPools]:
        """As many connections again, for transactions of handlers."""
        conninfo, arguments = settings.conninfo, plain_arguments(settings)
        bounds: Any = {"size": settings.pool, "patience_s": settings.connect_timeout_s}

        def connect() -> ThreadConnection:
            return ThreadConnection(LentToThread.connect(conninfo, **arguments), settings)

        async def aconnect() -> LoopConnection:
            return LoopConnection(await LentToLoop.connect(conninfo, **arguments), settings)

        threads = SyncPool(connect, self._opener, **bounds)
        return threads, LoopPools(lambda: AsyncPool(aconnect, self._opener, **bounds))

    def _close_idle(self) -> None:
        self._pools.close_idle()
        for pool in self._own:
            pool.close_idle()

    def _new_listener_thread(self, deserted: Any) -> ListenerThread:
        return ListenerThread(
            self._listening_connection, self._channel, self._notify, self._received, deserted
        )

    def _received(self, names: frozenset[str]) -> None:
        """Forget scan floors: a job may have gone back to a place that claims have passed."""
        if _BELOW in names:
            self.jobs.floors.forget()

    def _due(self, topics: Sequence[str]) -> Due:
        """Which topics to notify with a commit; this process need not hear of its own floors."""
        if FLOOR_TOPIC in topics:
            self.jobs.floors.forget()
        return self._notices.due(topics)

    def _listening_connection(self) -> Connection[Any]:
        settings = self._settings
        if settings.listen_conninfo is not None:
            settings = dataclasses.replace(settings, conninfo=settings.listen_conninfo)
        return self._options.connect(settings)

    def _notify(self, payloads: Sequence[str]) -> None:
        """Send wake-ups that had to wait. What cannot be sent is found by polling."""
        statement = self._texts.statement(NOTIFY)
        commands = [Command(statement, (self._channel, payload)) for payload in payloads]
        with suppress(Error, PackhorseError):
            connection = self._pools.other.take(_NOTIFY_S)
            try:
                connection.drive(exchange(connection, [commands]))
            finally:
                self._pools.other.give(connection)

    def _rendered(self, text: str) -> str:
        """A text with the names of this store in it, and its clock."""
        return self._texts.rendered(text, None if self._clock is None else self._clock.now_us())

    def _tell_later(self, topics: Sequence[str]) -> None:
        self._notices.later(topics)  # another one after a fork

    def _make_ready(self) -> None:
        """Before the first plan: a schema that fits."""
        with self._migrating:
            if not self._migrated:
                self.migrate()

    def _look_at_schema(self) -> int:
        """Its version, by the connection that will be needed anyway; 0 if there is none."""
        version, planned = self._sync.run(Plan("schema", _schema_steps, writes=False))
        # A pooler may take what a connection asks for when it begins, and forget it.
        self._options.hold = self._options.hold and planned == "off"
        return version

    @contextmanager
    def _plain_connection(self) -> Iterator[Connection[Any]]:
        """A connection of psycopg for a moment; its errors are told in Packhorse's words."""
        try:
            connection = self._opener.open(lambda: self._options.connect(self._settings))
            with closing(connection):
                yield connection
        except Error as error:
            raise translated(error, self._settings) from error

    def _stop_preparing(self) -> None:
        """A pooler does not keep statements prepared: do without, from now on."""
        self._settings = dataclasses.replace(self._settings, prepare=False)
        self._pools.close()

    def after_fork_in_child(self) -> None:
        """After a fork, in the child: threads did not come along, and connections are not ours.

        To close them here would end the parent's sessions, so they are kept, unused.
        """
        listening = self.wakeups.after_fork_in_child()
        self._left_to_parent.append((self._pools, self._own, self._notices, listening))
        self._set_up()


def _schema_steps() -> Steps[tuple[int, str]]:
    """The version of the schema, 0 if there is none; and whether our settings are heard."""
    looks = "select to_regclass('{schema_version}') is not null, current_setting('enable_seqscan')"
    [(there, planned)] = yield Rows(looks)
    rows = (yield Rows("select version::bigint from {schema_version}")) if there else []
    return (rows[0][0] if rows else 0), planned


#: Requests in the intake that are counted.
_COUNTED_MAX: Final = 1_000
_ASK = """\
select current_setting('server_version'), current_database(), current_user,
       current_setting('synchronous_commit'), current_setting('fsync'),
       current_setting('full_page_writes'),
       pg_is_in_recovery() or current_setting('transaction_read_only')::boolean,
       (select coalesce(sum(pg_total_relation_size(oid)), 0)::bigint from pg_class
        where relnamespace = to_regnamespace(%s) and relkind in ('r', 'p')),
       current_setting('statement_timeout')
"""


def _facts(connection: Connection[Any], settings: PostgresSettings) -> dict[str, str]:
    """What there is to know, as text."""
    row = connection.execute(_ASK, (settings.schema,)).fetchone()
    assert row is not None  # noqa: S101 - it has no condition
    version, database, user, commit, fsync, pages, read_only, size, timeout = row
    return {
        "store": "postgresql",
        "server": version,
        "database": database,
        "user": user,
        "schema name": f"{settings.schema} (prefix {settings.prefix!r})",
        "schema": str(schema_version(connection, settings)),
        "size": f"{size / 1024:.0f} KiB",
        "synchronous_commit": commit,
        "survives a power cut": _durability(commit, fsync, pages),
        "statement timeout": f"{timeout} on the server, {settings.statement_timeout_s:g}s asked",
        "intake": _intake(connection, settings),
        "connections at most": f"{settings.hot_pool} hot, {settings.pool} others, 1 listening",
        "writable": "no" if read_only else "yes",
    }


def _intake(connection: Connection[Any], settings: PostgresSettings) -> str:
    """How much transactions of users have asked for that was not admitted yet."""
    table = f'"{settings.schema}"."{settings.prefix}requests"'
    found = connection.execute("select to_regclass(%s)", (table,)).fetchone()
    if found is None or found[0] is None:
        return "empty"
    text = f"select count(*) from (select 1 from {table} limit {_COUNTED_MAX}) as waiting"  # noqa: S608 - names of the settings
    row = connection.execute(text.encode()).fetchone()
    waiting = 0 if row is None else row[0]
    return f"{waiting}{'+' if waiting == _COUNTED_MAX else ''} waiting" if waiting else "empty"


def _durability(commit: str, fsync: str, pages: str) -> str:
    if fsync == "off":
        return "no: fsync is off on this server, and a power cut can destroy the database"
    if pages == "off":
        return "not surely: full_page_writes is off on this server"
    if commit == "off":
        return "not every commit: synchronous_commit is off, the last ones may be lost"
    return "every commit"
