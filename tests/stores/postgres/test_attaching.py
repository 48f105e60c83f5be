# SPDX-License-Identifier: MIT
"""Values that two writers keep with one job under one name, at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final

import psycopg

from packhorse.core.policies.attachments import Attaching
from packhorse.core.settlement import Verdict
from packhorse.stores.postgres.settings import PostgresSettings
from tests.stores.postgres.support import (
    PATIENCE_S,
    ask,
    claiming,
    postgres_store,
    renewing,
    submitting,
    until,
)

_WAITING: Final = (
    "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%attach%'"
)


def test_a_name_that_came_while_the_job_was_locked_gets_the_later_value(url: str) -> None:
    store = postgres_store(url)
    store.run(store.leases.renew(renewing()))
    store.run(submitting(store, "job"))
    [job] = store.run(store.jobs.claim(claiming())).jobs
    schema, conninfo = store._settings.schema, PostgresSettings.from_url(url).conninfo
    plan = store.attachments.attach([Attaching(job.id, job.fence, {"a": b"2", "b": b"3"})])

    with ThreadPoolExecutor() as threads, psycopg.connect(conninfo) as other:
        locked = f'select seq from "{schema}".jobs where id = %s for update'
        kept_by_other = (
            f'insert into "{schema}".attachments (seq, name, number, value) '
            f"select seq, 'a', 0, '1' from \"{schema}\".jobs where id = %s"
        )
        for text in (locked, kept_by_other):
            other.execute(text.encode(), (job.id,))
        answer = threads.submit(store.run, plan)
        until(lambda: ask(url, _WAITING))
        other.commit()
        assert answer.result(PATIENCE_S) == (Verdict.APPLIED,)

    kept = store.run(store.attachments.attachments(job.id))
    store.close()
    assert kept is not None
    assert kept.values == {"a": b"2", "b": b"3"}
