# SPDX-License-Identifier: MIT
"""Large payloads lie beside the row: a change of the row does not write them again."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from packhorse.core.job import JobStatus
from packhorse.core.settlement import SettlementKind, Verdict
from packhorse.errors import JobConflict, StoreError
from packhorse.stores.plan import Plan
from packhorse.stores.requests import JobFilter, QueueSettings
from packhorse.stores.sqlite import migrate as migrations
from packhorse.stores.sqlite.store import SqliteStore
from packhorse.testing.conformance.samples import QUEUE, TASK, new_job, settlement_of
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


def test_large_payloads_and_results_go_beside_small_ones_each_to_its_own_job(
    store: SqliteStore,
) -> None:
    sizes = {f"job-{number}": 70_000 if number % 2 else 7 for number in range(COUNT)}
    payloads = {job_id: b'"' + size * b"x" + b'"' for job_id, size in sizes.items()}
    new = [new_job(job_id, payload=payload) for job_id, payload in payloads.items()]
    store.run(store.jobs.submit(new))

    claimed = store.run(store.jobs.claim(claiming(limit=COUNT))).jobs
    assert {job.id: job.payload.encode() for job in claimed} == payloads
    ended = [
        msgspec.structs.replace(settlement_of(SettlementKind.COMPLETED, job), result=job.payload)
        for job in claimed
    ]
    stale = [msgspec.structs.replace(one, fence=one.fence - 1) for one in ended]
    assert store.run(store.jobs.settle(stale)) == (Verdict.STALE,) * COUNT
    assert store.run(store.jobs.settle(ended)) == (Verdict.APPLIED,) * COUNT

    for job_id, payload in payloads.items():
        record = store.run(store.inspection.job(job_id))
        assert record is not None
        assert (record.status, record.result) == (JobStatus.COMPLETED, payload)


@pytest.mark.parametrize("ids_are_new", [True, False], ids=["one", "general"])
def test_a_large_payload_is_read_by_every_reader_and_goes_with_its_job(
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


@pytest.mark.parametrize("ids_are_new", [True, False], ids=["in bulk", "general"])
def test_among_many_jobs_only_large_payloads_lie_beside_their_rows(
    store: SqliteStore, tmp_path: Path, *, ids_are_new: bool
) -> None:
    jobs = [new_job(f"job {n}", payload=LARGE if n % 2 else b"{}") for n in range(COUNT)]

    store.run(store.jobs.submit(jobs, ids_are_new=ids_are_new))

    claimed = store.run(store.jobs.claim(claiming(limit=COUNT))).jobs
    assert [(job.id, job.payload.encode()) for job in claimed] == [
        (job.id, job.payload) for job in jobs
    ]
    assert ask(tmp_path, COUNT_BODIES) == [(COUNT // 2,)]


def test_a_large_job_carried_from_another_store_lies_beside_its_row(
    store: SqliteStore, tmp_path: Path
) -> None:
    store.run(store.jobs.submit([new_job("job", payload=LARGE)]))
    [carried] = store.run(store.transfer.carried(["job"]))
    store.run(store.jobs.cancel("job"))
    store.run(store.jobs.delete(JobFilter(), limit=1))

    store.run(store.transfer.carry_in([carried]))

    assert ask(tmp_path, COUNT_BODIES) == [(1,)]
    [job] = store.run(store.jobs.claim(claiming())).jobs
    assert job.payload.encode() == LARGE


def test_a_file_whose_payloads_a_trigger_moved_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = migrations._migrations()
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "_migrations", lambda: known[:4])
        older = sqlite_store(tmp_path)
        assert older.migrate() == 4
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as connection:
        connection.execute(
            "insert into packhorse_jobs (seq, id, task, queue, status, lane, rank, place, "
            "priority, due_us, created_us, updated_us, ready_us, tenant, payload) "
            "values (1, 'older', ?, ?, 1, 0, 0, 1, 0, 0, 0, 0, 0, '', ?)",
            (TASK, QUEUE, LARGE.decode()),
        )
    assert ask(tmp_path, COUNT_BODIES) == [(1,)]

    newer = sqlite_store(tmp_path)
    newer.run(newer.jobs.submit([new_job("newer", payload=LARGE)]))
    older.run(older.jobs.submit([new_job("from a process still open", payload=LARGE)]))

    newer.run(newer.leases.renew(renewing()))
    claimed = newer.run(newer.jobs.claim(claiming(limit=COUNT))).jobs
    assert {job.payload.encode() for job in claimed} == {LARGE}
    assert len(claimed) == 3
    older.close()
    newer.close()
