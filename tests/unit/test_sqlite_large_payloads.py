# SPDX-License-Identifier: MIT
"""Large payloads lie beside the row: whoever changes the row does not write them again."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from packhorse.core.job import JobStatus
from packhorse.core.settlement import SettlementKind
from packhorse.errors import JobConflict, StoreError
from packhorse.stores.plan import Plan
from packhorse.stores.requests import JobFilter, QueueSettings
from packhorse.stores.sqlite.store import SqliteStore
from packhorse.testing.conformance.samples import QUEUE, new_job, settlement_of
from packhorse.testing.virtual_clock import VirtualClock
from tests.unit.sqlite_support import claiming, renewing, sqlite_store

LARGE: Final = b'{"to":"' + 64_000 * b"x" + b'"}'
COUNT: Final = 10
#: What a page is in the log, and what a batch of changes of small rows takes at most.
FRAME: Final = 4096 + 24
FEW_PAGES: Final = 2 * COUNT
COUNT_BODIES: Final = "select count(*) from packhorse_bodies"
#: Releases before bodies leave the column as it is.
AS_IF_OLDER: Final = "update packhorse_workers set schema = 2"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = sqlite_store(tmp_path, "?synchronous=OFF", VirtualClock())
    opened.run(opened.leases.renew(renewing()))
    yield opened
    opened.close()


def file_of(folder: Path) -> Path:
    [path] = folder.glob("*.db")
    return path


def pages_of(folder: Path, store: SqliteStore, plan: Plan[Any]) -> tuple[int, Any]:
    """How many pages a plan writes to the log, and its answer."""
    path = file_of(folder)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma wal_checkpoint(truncate)")
        answer = store.run(plan)
        return path.with_name(f"{path.name}-wal").stat().st_size // FRAME, answer


def ask(folder: Path, text: str) -> list[Any]:
    with closing(sqlite3.connect(file_of(folder), isolation_level=None)) as connection:
        return connection.execute(text).fetchall()


@pytest.mark.parametrize("limited", [False, True], ids=["unlimited", "limited"])
def test_claim_settle_and_retry_write_no_large_payload(
    store: SqliteStore, tmp_path: Path, *, limited: bool
) -> None:
    if limited:
        store.run(store.queues.declare([QueueSettings(QUEUE, concurrency=1000)]))
    store.run(store.jobs.submit([new_job(payload=LARGE) for _ in range(COUNT)]))

    claim, claimed = pages_of(tmp_path, store, store.jobs.claim(claiming(limit=COUNT)))
    done, failed = claimed.jobs[: COUNT // 2], claimed.jobs[COUNT // 2 :]
    ended = [settlement_of(SettlementKind.COMPLETED, job) for job in done]
    ended += [settlement_of(SettlementKind.FAILED, job) for job in failed]
    settle, _ = pages_of(tmp_path, store, store.jobs.settle(ended))

    assert {job.payload.encode() for job in claimed.jobs} == {LARGE}
    assert len(claimed.jobs) == COUNT
    assert claim <= FEW_PAGES
    assert settle <= FEW_PAGES


@pytest.mark.parametrize("ids_are_new", [True, False], ids=["one", "general"])
def test_a_large_payload_is_read_by_whoever_looks_and_goes_with_its_job(
    store: SqliteStore, tmp_path: Path, *, ids_are_new: bool
) -> None:
    store.run(store.jobs.submit([new_job("job", payload=LARGE)], ids_are_new=ids_are_new))

    record = store.run(store.inspection.job("job"))
    [found] = store.run(store.inspection.search(JobFilter(), limit=1)).jobs
    [job] = store.run(store.jobs.claim(claiming())).jobs
    assert record is not None
    assert (record.payload, job.payload.encode()) == (LARGE, LARGE)
    assert found.id == "job"
    assert ask(tmp_path, COUNT_BODIES) == [(1,)]
    store.run(store.jobs.settle([settlement_of(SettlementKind.DEAD, job)]))
    store.run(store.jobs.delete(JobFilter(), limit=1))
    assert ask(tmp_path, COUNT_BODIES) == [(0,)]


def test_the_same_large_job_submitted_again_is_known(store: SqliteStore) -> None:
    store.run(store.jobs.submit([new_job("job", payload=LARGE)]))

    [again] = store.run(store.jobs.submit([new_job("job", payload=LARGE)]))

    assert again.deduplicated
    with pytest.raises(JobConflict):
        store.run(store.jobs.submit([new_job("job", payload=b"{}")]))


def test_while_a_worker_of_an_older_release_lives_large_payloads_stay_in_their_rows(
    store: SqliteStore, tmp_path: Path
) -> None:
    ask(tmp_path, AS_IF_OLDER)

    store.run(store.jobs.submit([new_job("job", payload=LARGE)]))

    assert ask(tmp_path, COUNT_BODIES) == [(0,)]
    assert ask(tmp_path, "select payload from packhorse_jobs") == [(LARGE.decode(),)]
    [job] = store.run(store.jobs.claim(claiming())).jobs
    assert job.payload.encode() == LARGE


def test_a_worker_of_an_older_release_that_comes_back_takes_no_job_it_cannot_read(
    store: SqliteStore, tmp_path: Path
) -> None:
    store.run(store.jobs.submit([new_job("large", payload=LARGE), new_job("small")]))
    ask(tmp_path, AS_IF_OLDER)

    with pytest.raises(StoreError, match="upgrade Packhorse"):
        store.run(store.jobs.claim(claiming()))

    record = store.run(store.inspection.job("large"))
    assert record is not None
    assert record.status is JobStatus.QUEUED
    store.run(store.leases.renew(renewing()))
    assert len(store.run(store.jobs.claim(claiming())).jobs) == 2
