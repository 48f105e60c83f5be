# SPDX-License-Identifier: MIT
"""What is large lies beside the row on the server too, as long as no statement touches it."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from typing import Final

from packhorse.core.settlement import SettlementKind
from packhorse.testing.conformance.samples import new_job, settlement_of
from packhorse.testing.places import drop_schema
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.support import ask, claiming, postgres_store, renewing

_COUNT: Final = 20
_SIZE: Final = 64_000
#: Far more than the rows take, with what the server writes by itself; far less than the payloads.
_SMALL: Final = _COUNT * _SIZE // 4


def test_claim_settle_and_retry_write_no_large_payload(own_server: PostgresServer) -> None:
    url = f"{own_server.url()}?schema=large"
    store = postgres_store(url)
    store.migrate()
    store.run(store.leases.renew(renewing()))
    letters = random.Random(1).choices(string.ascii_letters, k=_SIZE)  # no two pages are alike
    payload = f'{{"to":"{"".join(letters)}"}}'.encode()
    jobs = [new_job(payload=payload) for _ in range(_COUNT)]

    submit = _written(url, lambda: store.run(store.jobs.submit(jobs)))
    claimed = store.run(store.jobs.claim(claiming(limit=_COUNT // 2))).jobs
    ended = [settlement_of(SettlementKind.FAILED, job) for job in claimed]
    retry = _written(url, lambda: store.run(store.jobs.settle(ended)))
    claim = _written(url, lambda: store.run(store.jobs.claim(claiming(limit=_COUNT))))

    store.close()
    drop_schema(own_server.url(), "large")
    assert {job.payload.encode() for job in claimed} == {payload}
    assert submit > _COUNT * _SIZE // 2
    assert retry < _SMALL
    assert claim < _SMALL


def _written(url: str, work: Callable[[], object]) -> int:
    """How many bytes some work writes to the log of the server."""
    where = "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
    before = int(ask(url, where)[0][0])
    work()
    return int(ask(url, where)[0][0]) - before
