# SPDX-License-Identifier: MIT
"""The intake of PostgreSQL: a table that users' transactions append to, and its one admitter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal

from packhorse.core.job import NewJob
from packhorse.stores.intake import (
    ADMITTED_MAX,
    INTAKE_TOPIC,
    IntakeRequest,
    UserStatement,
    read_request,
    written_request,
    written_requests,
)
from packhorse.stores.plan import Plan, Steps, planned
from packhorse.stores.postgres.dialect import POSTGRES
from packhorse.stores.postgres.locking import INTAKE, LockLevel
from packhorse.stores.postgres.rendering import SERVER_CLOCK, SERVER_NOW
from packhorse.stores.postgres.statements import Lock, Once, sql
from packhorse.stores.records import RefusedJob
from packhorse.stores.sql.intake import admit_requests, alias_names, holder_plan
from packhorse.stores.sql.records import reject
from packhorse.stores.sql.statements import Rows, Send


class PostgresIntake:
    """See `Intake`. `rendered`: a text with the names of this store in it.

    `keys_of`: the locks on the keys that a job wants. `tell`: send a wake-up a little later.
    """

    family: Literal["postgresql"] = "postgresql"
    admits_by_itself = False

    def __init__(
        self,
        rendered: Callable[[str], str],
        locks: Callable[[], LockLevel],
        keys_of: Callable[[NewJob], Iterable[str]],
        tell: Callable[[Sequence[str]], None],
        notice: str,
    ) -> None:
        self._rendered = rendered
        self._locks = locks
        self._keys_of = keys_of
        self._tell = tell
        self._notice = UserStatement(notice)
        self._texts: dict[str, str] = {}  # at most one a statement

    def probe(self) -> UserStatement:
        return UserStatement(self._rendered(sql("intake_probe")))

    @planned(writes=False)
    def identity(self) -> Steps[Any]:
        [row] = yield Rows(sql("intake_probe"))
        return tuple(row[:3])

    def unfit(self, answer: Sequence[Sequence[Any]], own: Any) -> str | None:
        [(table, *where, may_insert)] = answer
        table_name = self._rendered("{requests}")
        if table is None:
            return (
                f"its database has no table {table_name}: give a connection to the database of "
                "this store, whose tables 'packhorse migrate' makes"
            )
        if (table, *where) != own:
            return (
                "it is connected to another database or server than this store: give a connection "
                "to the same one"
            )
        if not may_insert:
            return f"its role may not write: grant it insert on {table_name}"
        return None

    def append(self, requests: Sequence[IntakeRequest]) -> UserStatement:
        if len(requests) == 1:
            text = self._texts.get("intake_append_one") or self._text("intake_append_one")
            return UserStatement(text, (written_request(requests[0]),))
        return UserStatement(self._text("intake_append"), (written_requests(requests),))

    def _text(self, name: str) -> str:
        """A statement of users' connections; one without an instant in it is made once."""
        text = self._texts.get(name)
        if text is None:
            text = self._rendered(sql(name)).replace("%s", "?")
            if SERVER_NOW in text:
                text = self._texts[name] = text.replace(SERVER_NOW, SERVER_CLOCK)
        return text

    def notice(self) -> UserStatement | None:
        return self._notice

    def admit(self, *, wait: bool = False, limit: int = ADMITTED_MAX) -> Plan[int]:
        steps = partial(self._admit, self._locks(), limit, wait=wait)
        return Plan("admit", steps, look=_is_empty)

    @planned()
    def give_up(self, reason: str, *, keep: bool) -> Steps[None]:
        yield Lock(INTAKE)
        locks = yield from POSTGRES.go_alone()
        rows = yield Rows(sql("intake_waiting"), (1,))
        for number, at_us, text in rows:
            yield Send(sql("intake_remove"), ([number],))
            job = read_request(text, at_us).job if keep else None
            if job is not None:
                refused = RefusedJob(job.id, "STORE_ERROR", reason)
                yield from reject(POSTGRES, job, refused, locks)

    def holder(self, job_id: str) -> Plan[str | None]:
        return holder_plan(POSTGRES, job_id)

    def wake(self, queues: Sequence[str]) -> None:
        del queues  # who admits tells their workers
        self._tell((INTAKE_TOPIC,))

    def _admit(self, locks: LockLevel, limit: int, *, wait: bool) -> Steps[int]:
        if wait:
            yield Lock(INTAKE)
        else:
            [(alone,)] = yield Rows(sql("intake_alone"))
            if not alone:
                return 0
        rows = yield Rows(sql("intake_waiting"), (limit,))
        if not rows:
            return 0
        requests = [read_request(text, at_us) for _, at_us, text in rows]
        jobs = [one.job for one in requests if one.job is not None]
        yield from POSTGRES.lock_records(alias_names(jobs))
        locks.want([key for job in jobs for key in self._keys_of(job)])
        locks.expect([job.queue for job in jobs])
        yield from locks.enter()
        locks.allow([job.queue for job in jobs])
        yield from admit_requests(POSTGRES, requests, locks)
        yield Send(sql("intake_remove"), ([number for number, _, _ in rows],))
        return len(rows)


def _is_empty() -> Steps[int | None]:
    rows = yield Once(sql("intake_any"))
    return None if rows else 0
