# SPDX-License-Identifier: MIT
"""What the tests of the PostgreSQL store share: stores, plans, and a look from aside."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import ConnStatus

from packhorse.core.clock import Clock
from packhorse.stores.plan import Plan
from packhorse.stores.postgres.pipeline import PipelinedConnection
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.stores.postgres.store import PostgresStore
from packhorse.stores.requests import ClaimRequest, Renewal
from packhorse.testing.conformance.samples import ANNA, LEASE_US, QUEUE, TASK, TIMEOUT_US, new_job

#: Far longer than anything takes, so that only a hang reaches it.
PATIENCE_S: Final = 20.0


def postgres_store(url: str, clock: Clock | None = None) -> PostgresStore:
    return PostgresStore(PostgresSettings.from_url(url), clock=clock)


def submitting(store: PostgresStore, *names: str) -> Plan[Any]:
    return store.jobs.submit([new_job(name) for name in names])


def claiming(*, limit: int = 10, queue: str = QUEUE) -> ClaimRequest:
    return ClaimRequest(
        worker=ANNA, queues=(queue,), tasks=(TASK,), limit=limit, default_timeout_us=TIMEOUT_US
    )


def renewing() -> Renewal:
    return Renewal(ANNA, LEASE_US, queues=(QUEUE,), tasks=(TASK,))


def names_in(url: str) -> list[str]:
    """The ids of the jobs in a store, read by a stranger."""
    store = postgres_store(url)
    try:
        rows = ask(url, f'select id from "{store._settings.schema}".jobs order by seq')
    finally:
        store.close()
    return [name for (name,) in rows]


def ask(url: str, text: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """One statement, on a connection of its own."""
    settings = PostgresSettings.from_url(url)
    with psycopg.connect(settings.conninfo, autocommit=True) as connection:
        cursor = connection.execute(text.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []


def until(condition: Callable[[], object]) -> None:
    """Wait for something that sends no signal."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


#: A lock for whatever a test makes wait, such as the trigger of `held_up`.
BARRIER: Final = 4_200_042
_TRIGGER: Final = """
create function {schema}.wait() returns trigger language plpgsql as $body$
begin
    perform pg_advisory_xact_lock_shared({barrier});
    return new;
end
$body$;
create {constraint} trigger wait {event} on {schema}.jobs {deferred}
for each row execute function {schema}.wait()
"""


@contextmanager
def held_up(
    url: str, schema: str, event: str, *, at_commit: bool = False
) -> Iterator[Callable[[], None]]:
    """Let changes of jobs, or their commits, wait until the function given is called."""
    text = _TRIGGER.format(
        schema=f'"{schema}"',
        barrier=BARRIER,
        constraint="constraint" if at_commit else "",
        event=event,
        deferred="deferrable initially deferred" if at_commit else "",
    )
    ask(url, text)
    conninfo = PostgresSettings.from_url(url).conninfo
    with psycopg.connect(conninfo, autocommit=True) as barrier:
        barrier.execute("select pg_advisory_lock(%s)", (BARRIER,))

        def go_on() -> None:
            barrier.execute("select pg_advisory_unlock_all()")

        yield go_on
    ask(url, f'drop function "{schema}".wait cascade')


def waiting_for_locks(url: str, schema: str) -> int:
    """How many sessions of a store wait for a lock in a statement that names its schema."""
    text = "select pid from pg_locks join pg_stat_activity using (pid) where not granted"
    return len(ask(url, f"{text} and strpos(query, %s) > 0", schema))


def end_sessions(url: str) -> int:
    """End every other session of the database, as an operator may; says how many."""
    ended = ask(
        url,
        "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() "
        "and datname = current_database() and application_name = 'packhorse'",
    )
    return len(ended)


def entries_read(url: str, store: PostgresStore, index: str = "%") -> int:
    """How many entries of the indexes of jobs were read so far; closes the store.

    A session tells the server what it has read at the latest when it ends, before it leaves the
    list of sessions. So that list is waited for, and not a counter that seems to rest.
    """
    pools = (store._pools.hot, store._pools.other)
    processes = [one.pgconn.backend_pid for pool in pools for one in pool._idle]
    store.close()
    end = "select pg_terminate_backend(pid) from pg_stat_activity where pid = any(%s)"
    until(lambda: not ask(url, end, processes))
    read = (
        "select coalesce(sum(idx_tup_read), 0) from pg_stat_user_indexes "
        "where schemaname = %s and relname = 'jobs' and indexrelname like %s"
    )
    return int(ask(url, read, store._settings.schema, index)[0][0])


def open_connections() -> list[PipelinedConnection]:
    """The connections of this process, but for those it knows to be closed."""
    # Not `isinstance`, which asks lazy objects of other libraries what they stand for.
    found = [one for one in gc.get_objects() if issubclass(type(one), PipelinedConnection)]
    return [one for one in found if one.pgconn.status == ConnStatus.OK]


def connections_to(processes: set[int]) -> list[PipelinedConnection]:
    """Those to the given processes of a server."""
    return [one for one in open_connections() if one.pgconn.backend_pid in processes]


def sessions(url: str) -> list[tuple[Any, ...]]:
    """The sessions of the URL's application, but for those that look after the schema."""
    named = conninfo_to_dict(PostgresSettings.from_url(url).conninfo)["application_name"]
    return ask(
        url,
        "select pid from pg_stat_activity where application_name = %s "
        "and pid <> pg_backend_pid() and strpos(query, 'schema_version') = 0",
        named,
    )
