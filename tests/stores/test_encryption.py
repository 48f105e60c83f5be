# SPDX-License-Identifier: MIT
"""Values that are encrypted in the store: who can read what there, and what goes on."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from packhorse import (
    Context,
    Encryption,
    IdempotencyMismatch,
    JobConflict,
    KeyUnavailable,
    Packhorse,
    RetryPolicy,
    Unique,
)
from packhorse.client.encryption import new_key
from packhorse.client.rotation import Rotation, rotate
from packhorse.client.sealed_store import SealedStore, plain_store
from packhorse.client.spool.file import SpoolFile
from packhorse.core.batches import batch_group, member_id
from packhorse.core.job import NewJob
from packhorse.core.policies.records import Put, RecordId
from packhorse.core.sealing import is_sealed, key_of
from packhorse.stores.memory import MemoryStore
from packhorse.stores.protocol import Store
from packhorse.stores.transfer import CarriedPage
from packhorse.testing.conformance.journaling import BATCH, member

SECRET: Final = "hunter2-in-plain-sight"
K1: Final = {"k1": new_key()}
BOTH: Final = {"k2": new_key(), **K1}

NewApp = Callable[..., Packhorse]


@pytest.fixture
def keyed_app(store_kind: str, store_url: str) -> Iterator[NewApp]:
    """Makes apps with keys of their own, or none, on one store."""
    made: list[Packhorse] = []
    memory = MemoryStore()

    def make(keys: dict[str, str] | None = None, **options: Any) -> Packhorse:
        encryption = None if keys is None else Encryption(keys)
        place: Any = {"store": memory} if store_kind == "memory" else {"url": store_url}
        app = Packhorse(**place, encryption=encryption, **options)
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()


def declare(app: Packhorse) -> None:
    @app.task(retry=RetryPolicy(max_retries=0))
    def work(text: str, mode: str = "plain") -> str:
        if mode == "fail":
            raise ValueError(f"no good: {text}")
        return text[::-1]

    @app.task
    def stepped(ctx: Context, text: str) -> str:
        kept = ctx.step("keep", lambda: text)
        return kept + str(ctx.wait_for("go"))


def stored_values(store: Store, job_id: str) -> list[str | bytes]:
    """What a store itself holds of a job's values."""
    plain = plain_store(store)
    record = plain.run(plain.inspection.job(job_id))
    assert record is not None
    history = plain.run(plain.inspection.history(job_id))
    kept = plain.run(plain.attachments.attachments(job_id))
    errors = [each for each in (record.error, *(line.error for line in history)) if each]
    assert all(error.stack is None for error in errors)
    return [
        record.payload,
        *([] if record.result is None else [record.result]),
        *(error.message for error in errors),
        *([] if kept is None else kept.everything),
    ]


def test_arguments_results_and_errors_are_sealed_in_the_store(keyed_app: NewApp) -> None:
    app = keyed_app(K1)
    declare(app)
    good, bad = app.tasks["work"].enqueue(SECRET), app.tasks["work"].enqueue(SECRET, mode="fail")

    app.run(burst=True)

    assert good.result(timeout=0) == SECRET[::-1]
    error = bad.info().error
    assert error is not None
    assert (error.type, error.message) == ("ValueError", f"no good: {SECRET}")
    assert error.stack is not None
    assert SECRET in error.stack
    assert bad.history()[0].error.message == error.message  # type: ignore[union-attr]
    for job, number in ((good, 2), (bad, 3)):
        values = stored_values(app.store, job.id)
        assert len(values) == number
        assert all(key_of(value) == "k1" for value in values)


def test_jobs_of_a_fold_are_sealed_and_the_journal_is_plain(keyed_app: NewApp) -> None:
    app = keyed_app(K1)
    store = app.store
    new = member("next", payload=f'"{SECRET}"'.encode())

    assert store.run(store.journal.fold(BATCH, (), jobs=[new])).applied
    store.run(store.jobs.cancel("next"))

    assert all(key_of(value) == "k1" for value in stored_values(store, "next"))
    assert store.run(store.journal.journal_groups(limit=1)) == (BATCH,)
    [line] = store.run(store.journal.journal(BATCH, limit=1))
    assert line.job_id == "next"


def test_what_a_member_adds_to_its_batch_cannot_be_guessed_and_is_added_once(
    keyed_app: NewApp,
) -> None:
    app = keyed_app(K1)
    digest = hashlib.sha256(f'{{"text":"{SECRET}"}}'.encode()).hexdigest()[:32]

    @app.task
    def walk(ctx: Context, text: str) -> int:
        return ctx.batch.add([SECRET]) if text == "start" else 0

    first = walk.map(["start"], id="first")
    app.run(burst=True)
    records = plain_store(app.store).records
    added = app.store.run(records.records("batch_added", limit=10)).records
    second = walk.map(["start"], id="second")  # of an attempt that a release without digests began
    trace = member_id(batch_group("second", ""), 0).replace("-", "")
    old = RecordId("batch_added", "", f"{trace}:{digest}")
    app.store.run(records.change([Put(old, b"")]))
    app.run(burst=True)

    assert first.progress().total == 2
    assert len(added) == 1
    assert digest not in added[0].id.key
    assert second.progress().total == 1


def test_steps_and_signals_are_sealed_in_the_store(keyed_app: NewApp) -> None:
    app = keyed_app(K1)
    declare(app)
    job = app.tasks["stepped"].enqueue(SECRET)
    app.run(burst=True)
    job.signal("go", SECRET)

    waiting = stored_values(app.store, job.id)
    app.run(burst=True)

    assert len(waiting) == 4  # arguments, the step, the wait, the signal
    assert all(map(is_sealed, waiting))
    assert all(map(is_sealed, stored_values(app.store, job.id)))
    assert job.result(timeout=0) == SECRET + SECRET
    assert [step.name for step in job.info().steps] == ["keep", "go#1"]


def test_a_worker_without_the_key_leaves_a_job_waiting(keyed_app: NewApp) -> None:
    app, keyless, other = keyed_app(K1), keyed_app(), keyed_app({"k1": new_key()})
    for each in (app, keyless, other):
        declare(each)
    job = app.tasks["work"].enqueue("again")

    for _ in range(6):  # more often than it may be tried
        keyless.run(burst=True)
        other.run(burst=True)
        job.retry()

    info = app.job(job.id).info()
    assert (info.status, info.failures, info.snoozes) == ("queued", 0, 0)
    app.run(burst=True)
    assert job.result(timeout=0) == "niaga"
    with pytest.raises(KeyUnavailable, match=f"the result of job {job.id} .* key 'k1'"):
        keyless.job(job.id).result(timeout=0)
    with pytest.raises(KeyUnavailable, match="the payload of job"):
        keyless.job(job.id).wire()


def test_a_job_without_its_key_says_which_one_it_needs(keyed_app: NewApp) -> None:
    app, keyless = keyed_app(K1), keyed_app()
    declare(keyless)
    declare(app)
    job = app.tasks["work"].enqueue("x")

    keyless.run(burst=True)

    info = keyless.job(job.id).info()
    assert info.status == "pending"
    assert info.error is not None
    assert info.error.code == "KEY_UNAVAILABLE"
    assert "'k1'" in info.error.message
    assert job.id in info.error.message


async def test_a_runtime_is_not_given_what_it_cannot_read(keyed_app: NewApp) -> None:
    app, keyless = keyed_app(K1), keyed_app()
    declare(app)
    job = await app.tasks["work"].aenqueue("x")

    async with keyless.consumer() as consumer:
        assert await consumer.fetch(timeout=0.1) is None
    info = await job.ainfo()

    assert (info.status, info.failures) == ("pending", 0)


def test_a_step_that_cannot_be_read_is_not_run_again(keyed_app: NewApp) -> None:
    plain, keyed = keyed_app(), keyed_app(K1)
    declare(plain)
    declare(keyed)
    job = plain.tasks["stepped"].enqueue("once")
    keyed.run(burst=True)  # keeps the step sealed
    job.signal("go")

    plain.run(burst=True)

    info = job.info()
    assert (info.status, info.failures) == ("pending", 0)
    assert info.error is not None
    assert info.error.code == "KEY_UNAVAILABLE"


def test_arguments_put_in_the_place_of_another_job_do_not_run(keyed_app: NewApp) -> None:
    app = keyed_app(K1)
    declare(app)
    theirs = app.tasks["work"].enqueue("theirs")
    plain = plain_store(app.store)
    record = plain.run(plain.inspection.job(theirs.id))
    assert record is not None

    moved = NewJob(id="mine", task=record.task, payload=record.payload)
    plain.run(plain.jobs.submit([moved]))
    app.run(burst=True)

    assert theirs.result(timeout=0) == "theirs"[::-1]
    assert (app.job("mine").status(), app.job("mine").info().failures) == ("pending", 0)


def test_jobs_are_the_same_by_id_and_by_key_as_without(keyed_app: NewApp) -> None:
    app, newer = keyed_app(K1), keyed_app(BOTH)
    declare(app)
    declare(newer)
    work, later = app.tasks["work"], newer.tasks["work"]
    first = work.using(job_id="one", idempotency_key="key").enqueue("x")

    assert work.using(job_id="one").enqueue("x").deduplicated
    assert later.using(job_id="one").enqueue("x").deduplicated  # sealed with another key
    with pytest.raises(JobConflict):
        work.using(job_id="one").enqueue("y")
    assert work.using(idempotency_key="key").enqueue("x") == work.using(job_id="one").enqueue("x")
    with pytest.raises(IdempotencyMismatch):
        work.using(idempotency_key="key").enqueue("y")
    assert later.using(idempotency_key="key").enqueue("x").id == first.id


def test_arguments_that_replace_those_of_a_waiting_job_open_there(keyed_app: NewApp) -> None:
    app = keyed_app(K1)
    declare(app)
    task = app.tasks["work"].using(unique=Unique(key="mode", on_conflict="replace"))
    holder = task.enqueue("old")

    assert task.enqueue("new").id == holder.id
    app.run(burst=True)

    assert holder.result(timeout=0) == "wen"
    assert all(map(is_sealed, stored_values(app.store, holder.id)))


def test_older_keys_and_plain_values_are_read_and_the_active_one_writes(keyed_app: NewApp) -> None:
    plain, older, newer = keyed_app(), keyed_app(K1), keyed_app(BOTH)
    for each in (plain, older, newer):
        declare(each)
    jobs = [each.tasks["work"].enqueue("abc") for each in (plain, older, newer)]

    newer.run(burst=True)

    assert [newer.job(job.id).result(timeout=0) for job in jobs] == ["cba"] * 3
    written = [stored_values(newer.store, job.id) for job in jobs]
    assert [[key_of(value) for value in values] for values in written] == [
        [None, "k2"],
        ["k1", "k2"],
        ["k2", "k2"],
    ]


def test_copying_carries_values_as_they_are(keyed_app: NewApp) -> None:
    app = keyed_app(K1)
    declare(app)
    app.tasks["work"].enqueue(SECRET)

    page: CarriedPage = app.store.run(app.store.transfer.carry_out(after=None, limit=10))

    assert key_of(page.jobs[0].job.payload) == "k1"


def test_what_is_spooled_is_sealed_too(keyed_app: NewApp, tmp_path: Path) -> None:
    spool = tmp_path / "spool.db"
    away = Packhorse("redis://127.0.0.1:1/?namespace=x", spool=spool, encryption=Encryption(K1))
    declare(away)

    away.tasks["work"].enqueue(SECRET)
    away.close()

    (waiting,) = SpoolFile(spool).first(2)
    assert key_of(waiting.jobs[0].payload) == "k1"
    app = keyed_app(K1)
    declare(app)
    app.store.run(app.store.jobs.submit(waiting.jobs))  # as the delivery does
    app.run(burst=True)
    assert app.job(waiting.jobs[0].id).result(timeout=0) == SECRET[::-1]


def test_rotation_seals_everything_with_the_active_key(keyed_app: NewApp) -> None:
    older = keyed_app(K1)
    declare(older)
    jobs = [
        older.tasks["work"].enqueue("x" * 5_000),
        older.tasks["work"].enqueue(SECRET, mode="fail"),
        older.tasks["stepped"].enqueue(SECRET),
        older.tasks["work"].using(unique=Unique(on_conflict="replace")).enqueue(SECRET),
    ]
    older.run(burst=True)
    jobs[2].signal("go", SECRET)
    newer = keyed_app(BOTH)
    declare(newer)
    waiting = newer.tasks["work"].enqueue("waits")
    pages: list[str | None] = []

    told = _rotated(newer, lambda _told, after: pages.append(after))

    assert (told.jobs, told.unreadable, pages) == (5, {}, [None])
    assert told.values == 2 + 2 + 4 + 2  # the error of the last attempt is that of the job
    for job in (*jobs, waiting):
        assert {key_of(value) for value in stored_values(newer.store, job.id)} == {"k2"}
    assert _rotated(newer).values == 0
    newest = keyed_app({"k2": BOTH["k2"]})
    declare(newest)
    newest.run(burst=True)
    assert newest.job(jobs[0].id).result(timeout=0) == "x" * 5_000
    assert newest.job(jobs[2].id).result(timeout=0) == SECRET * 2
    assert newest.job(jobs[3].id).result(timeout=0) == SECRET[::-1]
    failed = newest.job(jobs[1].id).info().error
    assert failed is not None
    assert failed.message == f"no good: {SECRET}"


def test_rotation_goes_on_in_pages_and_tells_what_it_cannot_read(
    keyed_app: NewApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.client.rotation.PAGE_JOBS", 2)
    older, other = keyed_app(K1), keyed_app({"k2": new_key(), "k1": new_key()})
    declare(older)
    jobs = older.tasks["work"].enqueue_many([{"text": str(number)} for number in range(5)])
    pages: list[str | None] = []

    told = _rotated(other, lambda _told, after: pages.append(after))

    assert (told.jobs, told.values, told.unreadable) == (5, 0, {"k1": 5})
    assert [page is None for page in pages] == [False, False, True]
    assert _rotated(keyed_app(BOTH), after=pages[0]).values == 3  # behind the first page
    assert {key_of(value) for job in jobs for value in stored_values(older.store, job.id)} == {
        "k1",
        "k2",
    }


def _rotated(
    app: Packhorse,
    progress: Callable[[Rotation, str | None], object] = lambda _told, _after: None,
    after: str | None = None,
) -> Rotation:
    assert isinstance(app.store, SealedStore)
    return rotate(app.store, after=after, progress=progress)


def test_jobs_of_a_transaction_are_sealed_and_go_by_another_name(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    app = Packhorse(f"sqlite:///{path}", encryption=Encryption(K1))
    declare(app)
    keyed = app.tasks["stepped"].using(idempotency_key="one")
    first = keyed.enqueue(SECRET)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as own:
        own.execute("begin immediate")
        plain = app.tasks["work"].using(tx=own).enqueue(SECRET)
        same = keyed.using(tx=own).enqueue(SECRET)
        own.execute("commit")

    same.signal("go", SECRET)  # it is the first, by the id of the second
    app.run(burst=True)

    assert plain.result(timeout=0) == SECRET[::-1]
    assert same.result(timeout=0) == first.result(timeout=0) == SECRET * 2
    assert [step.name for step in same.info().steps] == ["keep", "go#1"]
    for job in (plain, first):
        assert all(map(is_sealed, stored_values(app.store, job.id)))
    app.close()
