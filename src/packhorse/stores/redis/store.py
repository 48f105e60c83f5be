# SPDX-License-Identifier: MIT
"""The Redis store: one server, or the one node of a cluster that holds the namespace."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from packhorse.core.clock import Clock
from packhorse.core.interpreter import at_fork
from packhorse.errors import SchemaOutOfDate
from packhorse.stores.intake import Intake
from packhorse.stores.plan import Plan
from packhorse.stores.redis.attachments import RedisAttachments
from packhorse.stores.redis.connection import RedisConnection, Route, pack
from packhorse.stores.redis.facts import INFO, ServerFacts, read_info
from packhorse.stores.redis.faults import Lost, ReplyError, translated
from packhorse.stores.redis.inspection import RedisInspection
from packhorse.stores.redis.jobs import RedisJobs
from packhorse.stores.redis.layout import KEYS, SCHEMA, SCHEMA_AT_FIRST
from packhorse.stores.redis.leases import RedisLeases
from packhorse.stores.redis.listener import RedisWakeups, in_its_loop
from packhorse.stores.redis.pipeline import SharedConnection
from packhorse.stores.redis.pool import ConnectionPool
from packhorse.stores.redis.queues import RedisQueues
from packhorse.stores.redis.records import RedisJournal, RedisRecords
from packhorse.stores.redis.runner import Runner
from packhorse.stores.redis.settings import RedisSettings
from packhorse.stores.redis.transfer import RedisTransfer
from packhorse.stores.redis.upkeep import RedisUpkeep

T = TypeVar("T")


class RedisStore:
    """See `Store`. Threads borrow connections from a pool, an event loop shares one."""

    def __init__(self, settings: RedisSettings, *, clock: Clock | None = None) -> None:
        self.label = settings.label
        self.works_apart = True
        self.jobs = RedisJobs()
        self.leases = RedisLeases()
        self.queues = RedisQueues()
        self.upkeep = RedisUpkeep()
        self.inspection = RedisInspection()
        self.transfer = RedisTransfer()
        self.records = RedisRecords()
        self.journal = RedisJournal()
        self.attachments = RedisAttachments()
        self.intake: Intake | None = None
        self.transactions = None  # users have no rows here
        self._settings = settings
        self._route = Route(settings)
        self._runner = Runner(settings, self._route, clock)
        self._left_to_parent: list[object] = []
        self._checked = False
        self._lines: dict[asyncio.AbstractEventLoop, SharedConnection] = {}
        self.wakeups = RedisWakeups(settings.tag, self._route.open)
        self._set_up()
        at_fork(self.after_fork_in_child)

    def run(self, plan: Plan[T]) -> T:
        return self._runner.run(plan, self._pool)

    async def arun(self, plan: Plan[T]) -> T:
        return await self._runner.arun(plan, self._line())

    def migrate(self) -> int:
        return self._with_connection(partial(_check_schema, settings=self._settings))

    def facts(self) -> dict[str, str]:
        schema = self.migrate()
        server = self._with_connection(_server_facts)
        facts = server.facts()
        return {
            "store": "redis",
            "server": facts.pop("server"),
            "namespace": self._settings.namespace,
            "schema": str(schema),
            **facts,
        }

    def close(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, {}
        for line in lines.values():
            in_its_loop(line.loop, line.close)
        self._pool.close()
        self.wakeups.close()

    def after_fork_in_child(self) -> None:
        """After a fork, in the child: keep the parent's connections unused, and make new ones.

        Using them here would do harm, closing them would not; threads of the parent may hold locks.
        """
        self._left_to_parent.append((self._pool, self._lines, self.wakeups.after_fork_in_child()))
        self._route.forget_locks()
        self._set_up()

    def _set_up(self) -> None:
        """New locks and pools; nothing is opened before it is needed."""
        self._lock = threading.Lock()
        self._lines = {}
        self._pool = ConnectionPool(
            self._connect,
            self._outdated,
            limit=self._settings.connections,
            patience_s=self._settings.timeout_s,
        )

    def _line(self) -> SharedConnection:
        """The connection of the running event loop."""
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop)
        if line is None:
            with self._lock:
                for closed in [each for each in self._lines if each.is_closed()]:
                    self._lines.pop(closed).close()
                line = SharedConnection(self._connect, self._outdated, self._settings.timeout_s)
                self._lines[loop] = line
        return line

    def _outdated(self, connection: RedisConnection) -> bool:
        return connection.generation != self._route.generation

    def _connect(self) -> RedisConnection:
        """Connect, and check once that the server has a key layout we know."""
        connection = self._route.open()
        try:
            if not self._checked:
                self._check(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check(self, connection: RedisConnection) -> None:
        """Check the layout once for each process, and warn of dangerous server settings."""
        _check_schema(connection, self._settings)
        with self._lock:
            first, self._checked = not self._checked, True
        if first:
            _warn(_server_facts(connection), self.label)

    def _with_connection(self, work: Callable[[RedisConnection], T]) -> T:
        """Do something on a new connection."""
        try:
            connection = self._route.open()
            try:
                return work(connection)
            finally:
                connection.close()
        except (Lost, ReplyError) as error:
            raise translated(error, self.label) from error


def _server_facts(connection: RedisConnection) -> ServerFacts:
    info = connection.ask(pack(INFO))
    settings: dict[str, str] = {}
    for name in ("save", "appendfsync", "maxmemory-policy"):
        reply = connection.ask(pack(("CONFIG", "GET", name)))
        if isinstance(reply, dict):  # else it is forbidden
            settings |= {key.decode(): value.decode() for key, value in reply.items()}
    return ServerFacts({} if isinstance(info, Exception) else read_info(info), settings)


def _warn(server: ServerFacts, label: str) -> None:
    warning = server.warning()
    if warning is not None:
        logging.getLogger("packhorse").warning("%s: %s", label, warning)


def _check_schema(connection: RedisConnection, settings: RedisSettings) -> int:
    """Write the layout version if there is none, refuse a newer one, and return it.

    Many processes may do so at once: the first one writes.
    """
    key = settings.tag + KEYS["schema"]
    _asked(connection, "SET", key, SCHEMA_AT_FIRST, "NX")
    found = int(_asked(connection, "GET", key))
    if found > SCHEMA:
        raise SchemaOutOfDate(
            f"Redis at {settings.label} has key layout {found}, and this release knows up to "
            f"{SCHEMA}: upgrade packhorse here, or use another namespace"
        )
    return found


def _asked(connection: RedisConnection, *command: Any) -> Any:
    reply = connection.ask(pack(command))
    if isinstance(reply, Exception):
        raise reply
    return reply
