# SPDX-License-Identifier: MIT
"""The intake of a SQLite file: jobs of the fast path, and requests of users' transactions.

The runner unloads it before the first step of every other plan. So no plan sees what is in it, and
no worker has to look for it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from packhorse.core.clock import Clock
from packhorse.stores.intake import (
    ADMITTED_MAX,
    IntakeRequest,
    UserStatement,
    written_request,
    written_requests,
)
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.records import RefusedJob
from packhorse.stores.sql.dialect import no_steps
from packhorse.stores.sql.intake import admit_requests, holder_plan
from packhorse.stores.sql.records import reject
from packhorse.stores.sqlite.connection import file_at
from packhorse.stores.sqlite.dialect import ONE_WRITER, SQLITE
from packhorse.stores.sqlite.statements import sql


class SqliteIntake:
    """See `Intake`. `send` wakes workers after a commit."""

    family: Literal["sqlite"] = "sqlite"
    admits_by_itself = True

    def __init__(self, path: Path, clock: Clock, send: Callable[[Sequence[str]], None]) -> None:
        self._path = path
        self._clock = clock
        self._send = send

    def probe(self) -> UserStatement:
        return UserStatement(sql("intake_probe"))

    def identity(self) -> Plan[Any] | None:
        return None

    def unfit(self, answer: Sequence[Sequence[Any]], own: Any) -> str | None:
        del own  # a file is identified by its path
        [(file, ready)] = answer
        theirs = file_at(Path(file)) if file else None
        if theirs is None or theirs != file_at(self._path):
            return (
                f"its main database is {file or 'in memory'!r}, and this store is {self._path}: "
                "give a connection that opened this file; attached databases do not count"
            )
        if not ready:
            return (
                f"{self._path} has no tables of this release yet: run 'packhorse migrate', or use "
                "the app once, before the transaction begins"
            )
        return None

    def append(self, requests: Sequence[IntakeRequest]) -> UserStatement:
        now_us = self._clock.now_us()
        if len(requests) == 1:
            return UserStatement(sql("intake_append_one"), (now_us, written_request(requests[0])))
        return UserStatement(sql("intake_append"), (now_us, written_requests(requests)))

    def notice(self) -> UserStatement | None:
        return None

    def admit(self, *, wait: bool = False, limit: int = ADMITTED_MAX) -> Plan[int]:
        """Do nothing: the runner admits before the first step of every plan."""
        del wait, limit
        return Plan("admit", _nothing_left, writes=False)

    def give_up(self, reason: str, *, keep: bool) -> Plan[None]:
        """Do nothing: the runner rejects what cannot be admitted."""
        del reason, keep
        return Plan("give_up", no_steps, writes=False)

    def holder(self, job_id: str) -> Plan[str | None]:
        return holder_plan(SQLITE, job_id)

    def wake(self, queues: Sequence[str]) -> None:
        self._send([f"queue:{queue}" for queue in queues])


def _nothing_left() -> Steps[int]:
    yield from ()
    return 0


#: Runs steps on a connection; notes topics to wake.
_Answered = Callable[[sqlite3.Connection, Steps[Any], list[str]], Any]


def admit(
    connection: sqlite3.Connection,
    answered: _Answered,
    wakes: list[str],
    requests: Sequence[IntakeRequest],
) -> None:
    """Admit requests of users' transactions; reject what fails, so that plans go on."""
    own = list(wakes)
    connection.execute("savepoint admission")
    try:
        answered(connection, admit_requests(SQLITE, requests, ONE_WRITER), own)
    except sqlite3.Error:
        raise
    except Exception as error:  # noqa: BLE001 - retried one by one, then kept with the job
        connection.execute("rollback to admission")
        if len(requests) > 1:
            for one in requests:
                admit(connection, answered, wakes, [one])
        elif requests[0].job is not None:
            refused = RefusedJob(requests[0].job.id, "STORE_ERROR", repr(error))
            answered(connection, reject(SQLITE, requests[0].job, refused, ONE_WRITER), wakes)
    else:
        wakes[:] = own
    connection.execute("release admission")
