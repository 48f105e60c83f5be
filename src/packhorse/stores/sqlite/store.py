# SPDX-License-Identifier: MIT
"""The SQLite store: one file, several processes, no server.

The verbs that SQLite implements itself come first, then the store that runs all of them.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from packhorse.core.clock import Clock, SystemClock
from packhorse.core.generators import adrive, drive
from packhorse.core.interpreter import at_fork
from packhorse.core.job import JobRecord, NewJob
from packhorse.core.policies.lease import renewed_until_us
from packhorse.core.settlement import Settlement, Verdict
from packhorse.stores.intake import found_later
from packhorse.stores.plan import Plan, Steps, planned
from packhorse.stores.records import RecordPage
from packhorse.stores.requests import Claimed, ClaimRequest, Renewal, Renewed, Submitted
from packhorse.stores.sql.attachments import SqlAttachments
from packhorse.stores.sql.claim import claim_steps, look_steps
from packhorse.stores.sql.inspection import SqlInspection
from packhorse.stores.sql.jobs import SqlJobs
from packhorse.stores.sql.queues import SqlQueues
from packhorse.stores.sql.records import SqlJournal, SqlRecords
from packhorse.stores.sql.rows import RECORD_COLUMNS, json_text, read_record
from packhorse.stores.sql.settle import settle_in_order
from packhorse.stores.sql.statements import NOW, Change, Rows
from packhorse.stores.sql.transfer import SqlTransfer
from packhorse.stores.sql.upkeep import SqlLeases, SqlUpkeep, release_unknown
from packhorse.stores.sqlite.connection import (
    Identity,
    SqliteSettings,
    connect,
    file_at,
    translated,
)
from packhorse.stores.sqlite.dialect import ONE_WRITER, SQLITE
from packhorse.stores.sqlite.intake import SqliteIntake
from packhorse.stores.sqlite.migrate import is_migrated, migrate
from packhorse.stores.sqlite.runner import PlanRunner, RunnerParts
from packhorse.stores.sqlite.statements import sql
from packhorse.stores.sqlite.submit import short_submit, submit_steps, waiting_job
from packhorse.stores.sqlite.threads import LocalRunner, OwnerThread
from packhorse.stores.sqlite.transactions import SqliteTransactions
from packhorse.stores.sqlite.wakeups import SqliteWakeups

T = TypeVar("T")


class SqliteJobs(SqlJobs):
    """See `JobStore`."""

    def submit(
        self, jobs: Sequence[NewJob], *, ids_are_new: bool = False
    ) -> Plan[tuple[Submitted, ...]]:
        return Plan(
            "submit",
            lambda: submit_steps(jobs, ids_are_new=ids_are_new),
            short=short_submit(jobs, ids_are_new=ids_are_new),
        )

    def claim(self, request: ClaimRequest) -> Plan[Claimed]:
        """Look first, so that a claim from empty queues takes no write lock."""
        return Plan(
            "claim",
            lambda: claim_steps(SQLITE, request, ONE_WRITER),
            look=lambda: look_steps(SQLITE, request),
        )

    def settle(self, settlements: Sequence[Settlement]) -> Plan[tuple[Verdict, ...]]:
        return Plan("settle", lambda: settle_in_order(SQLITE, settlements, ONE_WRITER))

    @planned()
    def await_finish(self, job_id: str) -> Steps[JobRecord | None]:
        now_us = yield NOW
        yield Change(sql("await_finish"), (job_id,))
        rows = yield Rows(sql("job", columns=RECORD_COLUMNS), (job_id,))
        return read_record(rows[0], now_us) if rows else None


class SqliteLeases(SqlLeases):
    """See `LeaseStore`."""

    @planned()
    def renew(self, renewal: Renewal) -> Steps[Renewed]:
        now_us: int = yield NOW
        before = yield Rows(sql("lease_expires"), (renewal.worker,))
        before_us = before[0][0] if before else None
        expires_us = renewed_until_us(now_us, renewal.lease_us, renewal.asked_us, before_us)
        yield Change(
            sql("lease_renew"),
            {
                **msgspec.structs.asdict(renewal),
                **msgspec.structs.asdict(renewal.totals),
                "queues": json_text(renewal.queues),
                "tasks": json_text(renewal.tasks),
                "expires_us": expires_us,
                "now": now_us,
            },
        )
        if renewal.step_us > 0:
            moved = {"worker": renewal.worker, "step_us": renewal.step_us, "now": now_us}
            yield Change(sql("holds_move"), moved)
        released = 0
        if renewal.held is not None:
            released = yield from release_unknown(SQLITE, renewal.worker, set(renewal.held))
        lapsed = before_us is None or before_us <= now_us
        return Renewed(expires_us, now_us, lapsed, released)


class SqliteInspection(SqlInspection):
    """See `InspectionStore`."""

    def job(self, job_id: str, *, tenant: str | None = None) -> Plan[JobRecord | None]:
        """Look in the table and in the intake first, to find one job without unloading."""
        plan = super().job(job_id, tenant=tenant)

        def look() -> Steps[JobRecord | None]:
            record = yield from plan.steps()
            if record is None and not tenant:
                now_us = yield NOW
                row = yield from waiting_job(job_id)
                record = None if row is None else read_record(row, now_us)
            return record

        return Plan(plan.verb, plan.steps, writes=False, look=look, named=plan.named)


class SqliteRecords(SqlRecords):
    """See `RecordStore`."""

    def records(self, kind: str | None, **asked: Any) -> Plan[RecordPage]:
        """Read without unloading the intake, which has no records, or waiting for a writer."""
        plan = super().records(kind, **asked)
        return Plan(plan.verb, plan.steps, writes=False, look=plan.steps)


class SqliteStore:
    """See `Store`. Sync callers write in their own thread, async ones through an owner thread."""

    def __init__(self, settings: SqliteSettings, *, clock: Clock | None = None) -> None:
        self.label = f"sqlite:///{settings.path}"
        self.works_apart = False
        self.jobs = SqliteJobs(SQLITE, lambda: ONE_WRITER)
        self.leases = SqliteLeases(SQLITE)
        self.queues = SqlQueues(SQLITE)
        self.upkeep = SqlUpkeep(SQLITE)
        self.inspection = SqliteInspection(SQLITE)
        self.transfer = SqlTransfer(SQLITE)
        self.attachments = SqlAttachments(SQLITE)
        self.records = SqliteRecords(SQLITE, lambda _: ONE_WRITER)
        self.journal = SqlJournal(SQLITE, lambda _: ONE_WRITER)
        self.wakeups = SqliteWakeups(settings)
        self._settings = settings
        self._clock = clock or SystemClock()
        self.intake = SqliteIntake(settings.path, self._clock, self.wakeups.send)
        self._left_to_parent: list[object] = []
        self._migrated: Identity | None = None  # the file whose schema is up to date
        self._set_up()
        at_fork(
            self.after_fork_in_child,
            before=self.before_fork,
            after_in_parent=self.after_fork_in_parent,
        )

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

    def before_fork(self) -> None:
        """Before a fork: finish the plans that run, and close every connection."""
        for part in (self._local, self._writer, self._reader, self.wakeups):
            part.before_fork()
        self._migrating.acquire()

    def after_fork_in_parent(self) -> None:
        """After a fork, in the parent: everything opens again when it is needed."""
        with suppress(RuntimeError):  # it was not held: something interrupted `hold`
            self._migrating.release()
        for part in (self.wakeups, self._reader, self._writer, self._local):
            part.after_fork_in_parent()

    def after_fork_in_child(self) -> None:
        """After a fork, in the child: threads did not come along, and locks may be theirs.

        A fork that Python does not know of may have left connections open. Closing them here would
        disturb the parent, so they are kept, unused.
        """
        sockets = self.wakeups.after_fork_in_child()
        ours = (self._local, self._writer, self._reader, self.transactions)
        self._left_to_parent.append((*ours, sockets))
        self._set_up()
