# SPDX-License-Identifier: MIT
"""The table of an outbox, and what is asked of it; users' transactions only append to it.

number      in the order of writing; one that commits late has a low one
written_us  when; delays begin then
is_job      1: a job, 0: the cancel of one
request     what is asked for, as JSON
batch       which batch it is delivered with, once it was taken
taken_us    when that was
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from packhorse.client.user_connections import UserConnection
from packhorse.core.clock import SECOND_US, Clock, new_id
from packhorse.errors import ConfigError
from packhorse.stores.intake import (
    ADMITTED_MAX,
    IntakeRequest,
    UserStatement,
    read_request,
    written_request,
)

#: A batch that was taken so long ago and is still there was left behind: another one delivers it.
STALE_US: Final = 10 * SECOND_US
#: Requests that are counted at most.
COUNTED_MAX: Final = 10_000
#: Of one batch, beside the number of its requests.
_BATCH_BYTES_MAX: Final = 4 * 1024 * 1024

#: Of advisory locks, beside the number of the table.
_LOCK: Final = 1_886_744_168
_NAME: Final = re.compile(r"([a-z_][a-z0-9_]{0,62}\.)?[a-z_][a-z0-9_]{0,62}")
_POSTGRES_NOW: Final = "cast(extract(epoch from clock_timestamp()) * 1000000 as bigint)"
_COLUMNS: Final = """
    written_us bigint not null,
    is_job smallint not null,
    request text not null,
    batch text,
    taken_us bigint
"""
_POSTGRES_PROBE: Final = """
select
    cast(cast(found.name as oid) as bigint),
    (select cast(oid as bigint) from pg_database where datname = current_database()),
    cast(extract(epoch from pg_postmaster_start_time()) * 1000000 as bigint),
    has_table_privilege(found.name, 'insert')
from (select to_regclass('{table}') as name) as found
"""
_SQLITE_PROBE: Final = """
select
    (select file from pragma_database_list where name = 'main'),
    exists (select 1 from pragma_table_info('{table}', 'main')),
    0,
    1
"""


class OutboxBatch(NamedTuple):
    """Requests of one kind that are delivered together."""

    id: str
    requests: tuple[IntakeRequest, ...]
    again: bool  #: it may have been delivered before


class OutboxTable:
    """The statements of one outbox; each method works in the transaction of the connection."""

    def __init__(self, name: str, family: str, clock: Clock) -> None:
        if not _NAME.fullmatch(name) or (family == "sqlite" and "." in name):
            raise ConfigError(
                f"{name!r} is no name for the table of an outbox: small letters, digits and "
                "underscores, on PostgreSQL with a schema and a dot before it if need be"
            )
        self.name = name
        self._postgres = family == "postgresql"
        self._now = clock.now_us

    # --------------------------------------------------------------------- on users' connections

    def probe(self) -> UserStatement:
        """Ask which table a connection would write to; it cannot fail."""
        text = _POSTGRES_PROBE if self._postgres else _SQLITE_PROBE
        return UserStatement(text.format(table=self.name))

    def read_probe(self, rows: Sequence[Sequence[Any]]) -> tuple[object, bool, bool]:
        """What a connection answered: which table that is, if it is there, if it may be written."""
        [(first, second, third, may_insert)] = rows
        if self._postgres:
            return (first, second, third), first is not None, bool(may_insert)
        return (str(Path(first).resolve()) if first else None), bool(second), True

    def append(self, requests: Sequence[IntakeRequest]) -> UserStatement:
        """Add requests."""
        kinds = tuple([int(one.job is not None) for one in requests])
        given: list[Any] = [written_request(one) for one in requests]
        if not self._postgres:
            now_us = self._now()
            given = [each for request in given for each in (now_us, request)]
        return UserStatement(_append_text(self.name, self._postgres, kinds), tuple(given))

    # ---------------------------------------------------------------------- on a connection here

    def create(self, way: UserConnection) -> None:
        """Make the table, unless it is there."""
        _, exists, _ = self.read_probe(way.rows(self.probe()))
        if exists:  # to say so again would need the right to make one
            return
        number = (
            "bigint generated always as identity primary key"
            if self._postgres
            else "integer primary key autoincrement"
        )
        way.change(
            UserStatement(f"create table if not exists {self.name} (number {number},{_COLUMNS})")
        )

    def waiting(self, way: UserConnection) -> tuple[int, int | None]:
        """How many requests wait, up to a bound, and for how long the oldest one does."""
        found = f"select written_us from {self.name} order by number limit {COUNTED_MAX}"
        text = f"select count(*), min(written_us) from ({found}) as oldest"
        [(number, oldest_us)] = way.rows(UserStatement(text))
        now_us = self._clock(way)
        return number, None if oldest_us is None else max(0, now_us - oldest_us)

    def any(self, way: UserConnection) -> bool:
        """Whether something waits."""
        return bool(way.rows(UserStatement(f"select 1 from {self.name} limit 1")))

    def take(self, way: UserConnection, own: str | None) -> OutboxBatch | None:
        """The batch to deliver next; None if there is none, or another process delivers one.

        One batch at a time, so that requests arrive in order. `own`: a batch that this process has
        taken before, and could not deliver.
        """
        if not self._alone(way):
            return None
        now_us = self._clock(way)
        taken = f"select batch, taken_us from {self.name} where batch is not null limit 1"
        for batch, taken_us in way.rows(UserStatement(taken)):
            if batch != own and taken_us > now_us - STALE_US:
                return None
            again = f"update {self.name} set taken_us = {now_us} where batch = ?"
            way.change(UserStatement(again, (batch,)))
            where = UserStatement(f"batch = ? order by number limit {ADMITTED_MAX}", (batch,))
            return OutboxBatch(batch, self._read(way, where)[1], again=True)
        where = UserStatement(f"batch is null order by number limit {ADMITTED_MAX}")
        numbers, requests = self._read(way, where)
        if not numbers:
            return None
        batch = new_id()
        listed = ", ".join(map(str, numbers))
        text = f"update {self.name} set batch = ?, taken_us = {now_us} where number in ({listed})"
        way.change(UserStatement(text, (batch,)))
        return OutboxBatch(batch, requests, again=False)

    def _read(
        self, way: UserConnection, where: UserStatement
    ) -> tuple[list[int], tuple[IntakeRequest, ...]]:
        """Requests of the kind of the first one, and not too much at once."""
        text = f"select number, written_us, is_job, request from {self.name} where {where.text}"
        numbers: list[int] = []
        requests: list[IntakeRequest] = []
        size, kind = 0, None
        for number, written_us, is_job, request in way.rows(where._replace(text=text)):
            size += len(request)
            if numbers and (is_job != kind or size > _BATCH_BYTES_MAX):
                break
            kind = is_job
            numbers.append(number)
            requests.append(read_request(request, written_us))
        return numbers, tuple(requests)

    def remove(self, way: UserConnection, batch: str) -> None:
        """Take out what was delivered."""
        way.change(UserStatement(f"delete from {self.name} where batch = ?", (batch,)))

    def _alone(self, way: UserConnection) -> bool:
        """Whether no other process takes a batch until the end of this transaction."""
        if self._postgres:
            table = f"cast(cast(cast('{self.name}' as regclass) as oid) as integer)"
            text = f"select pg_try_advisory_xact_lock({_LOCK}, {table})"
            [(alone,)] = way.rows(UserStatement(text))
            return bool(alone)
        # What writes first, though nothing, has the file's one write lock from then on.
        way.change(UserStatement(f"update {self.name} set batch = batch where number = -1"))
        return True

    def _clock(self, way: UserConnection) -> int:
        if not self._postgres:
            return self._now()
        [(now_us,)] = way.rows(UserStatement(f"select {_POSTGRES_NOW}"))
        return int(now_us)


@lru_cache(maxsize=32)
def _append_text(table: str, postgres: bool, kinds: tuple[int, ...]) -> str:  # noqa: FBT001
    """Add requests of these kinds; alike each time, so that drivers know it when it comes again."""
    now = _POSTGRES_NOW if postgres else "?"
    rows = ", ".join([f"({now}, {kind}, ?)" for kind in kinds])
    return f"insert into {table} (written_us, is_job, request) values {rows}"
