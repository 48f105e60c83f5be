# SPDX-License-Identifier: MIT
"""`packhorse copy`: to another store and on, with nothing lost and nothing changed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from msgspec.structs import replace

from packhorse import Packhorse, PackhorseError, StoreCopied, StoreRefused, StoreUnavailable
from packhorse.cli.exits import ExitCode
from packhorse.cli.store_copy import Side
from packhorse.core.clock import SECOND_US, new_id
from packhorse.core.job import UniqueRule
from packhorse.core.policies.attachments import Attaching
from packhorse.core.policies.records import DOCUMENT_BYTES_MAX, Add, Put, RecordId
from packhorse.core.settlement import SettlementKind
from packhorse.stores import open_store
from packhorse.stores.protocol import Store
from packhorse.stores.requests import ClaimRequest, QueueSettings, Renewal, TaskSettings
from packhorse.stores.sql.transfer import SqlTransfer
from packhorse.stores.transfer import CarriedJob, Copied
from packhorse.testing.conformance.journaling import BATCH, member
from packhorse.testing.conformance.samples import QUEUE, TASK, new_job, settlement_of
from packhorse.testing.places import clear_namespace
from tests.cli.project import Project
from tests.servers.redis import redis_url
from tests.servers.schemas import schemas

JOBS = 25
WIRE = {"id": "018f2f3e-0000-7000-8000-000000000001", "type": "send_email", "payload": {}}
SOURCE, TARGET = "sqlite:///source.db", "sqlite:///target.db"


@pytest.fixture
def stores(folder: Path) -> Iterator[tuple[Store, Store]]:
    """A store with jobs that wait, retry and are dead, and an empty one."""
    source, target = open_store(SOURCE), open_store(TARGET)
    fill(source)
    yield source, target
    source.close()
    target.close()


def fill(store: Store) -> None:
    store.run(store.queues.declare([QueueSettings("mail", concurrency=2, dead_letter="shelf")]))
    store.run(store.queues.declare_tasks([TaskSettings(TASK, concurrency=7)]))
    store.run(store.queues.pause("mail", paused=True, key="k"))
    store.run(store.jobs.submit([new_job("fails"), new_job("dies"), new_job("ends")]))
    kinds = (SettlementKind.FAILED, SettlementKind.DEAD, SettlementKind.COMPLETED)
    steps = {f"step-{number}": bytes(100) for number in range(9)}
    for job, kind in zip(claim(store), kinds, strict=True):
        store.run(store.attachments.attach([Attaching(job.id, job.fence, steps)]))
        store.run(store.jobs.settle([settlement_of(kind, job)]))
    store.run(store.leases.leave("worker"))
    waiting = [new_job(f"waits-{number}", ordering_key="line") for number in range(JOBS - 3)]
    later = new_job("later", delay_us=3600 * SECOND_US, unique=UniqueRule("k"))
    store.run(store.jobs.submit([*waiting, later]))


def claim(store: Store) -> tuple[Any, ...]:
    store.run(store.leases.renew(Renewal("worker", 30 * SECOND_US)))
    request = ClaimRequest("worker", (QUEUE,), (TASK,), JOBS, 30 * SECOND_US)
    return store.run(store.jobs.claim(request)).jobs


def copied(project: Project, source: str, target: str, *more: str) -> dict[str, Any]:
    result = project.run("copy", "--from", source, "--to", target, "--yes", "--json", *more)
    document: dict[str, Any] = msgspec.json.decode(result.stdout)
    assert result.exit_code == (ExitCode.OK if document["equal"] else ExitCode.FAILED)
    return document


def shown(store: Store) -> tuple[Any, ...]:
    return store.run(store.transfer.carry_out(after=None, limit=10 * JOBS)).jobs


def test_all_that_waits_or_is_dead_is_carried(folder: Path, stores: tuple[Store, Store]) -> None:
    source, target = stores
    before = shown(source)

    told = copied(Project(folder), SOURCE, TARGET, "--batch", "4")

    assert (told["carried"], told["known"], told["conflicts"]) == (JOBS, 0, [])
    assert (told["leftFinished"], told["leftRunning"]) == (1, 0)
    assert told["source"] == told["target"]
    assert told["source"]["jobs"] == JOBS
    assert shown(source) == shown(target) == before
    mail = {one.settings.name: one for one in target.run(target.queues.queues())}["mail"]
    assert mail.settings == QueueSettings("mail", concurrency=2, dead_letter="shelf")
    assert mail.paused_keys == ("k",)
    assert target.run(target.queues.tasks()) == (TaskSettings(TASK, concurrency=7),)


def test_a_copy_that_was_interrupted_goes_on(folder: Path, stores: tuple[Store, Store]) -> None:
    source, target = stores
    target.run(target.transfer.carry_in(shown(source)[:10]))

    told = copied(Project(folder), SOURCE, TARGET)

    assert (told["carried"], told["known"], told["equal"]) == (JOBS - 10, 10, True)


def test_a_dry_run_changes_nothing(folder: Path, stores: tuple[Store, Store]) -> None:
    result = Project(folder).run("copy", "--from", SOURCE, "--to", TARGET, "--dry-run")

    assert result.exit_code == ExitCode.OK
    assert f"Would carry {JOBS} jobs" in result.stdout
    assert "There already, and passed over: 0" in result.stdout
    assert "Would leave 1 finished job (completed or cancelled) in the source" in result.stdout
    assert not (folder / "target.db").exists()


def test_a_dry_run_counts_what_the_target_has_already_in_whatever_status(
    folder: Path, stores: tuple[Store, Store]
) -> None:
    source, target = stores
    target.run(target.transfer.carry_in(shown(source)[:10]))
    target.run(target.jobs.submit([new_job("later")]))
    target.run(target.jobs.cancel("later"))

    result = Project(folder).run("copy", "--from", SOURCE, "--to", TARGET, "--dry-run", "--json")

    told = msgspec.json.decode(result.stdout)
    assert sum(told["wouldCarry"].values()) == JOBS
    assert (told["known"], told["leftFinished"], told["leftRunning"]) == (11, 1, 0)


def test_a_copy_says_how_many_finished_jobs_it_left(
    folder: Path, stores: tuple[Store, Store]
) -> None:
    result = Project(folder).run("copy", "--from", SOURCE, "--to", TARGET, "--yes")

    assert "Left 1 finished job (completed or cancelled) in the source" in result.stdout
    assert "running jobs" not in result.stdout


def test_a_source_that_never_ends_is_given_up(
    folder: Path, stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.cli.store_copy.PAGES_MAX", 3)

    result = Project(folder).run("copy", "--from", SOURCE, "--to", TARGET, "--yes", "--batch", "4")

    assert result.exit_code == ExitCode.FAILED
    assert "more than 3 pages of jobs; use a larger --batch" in result.stderr


def test_a_job_whose_key_is_held_is_named_and_left_out(
    folder: Path, stores: tuple[Store, Store]
) -> None:
    stores[1].run(stores[1].jobs.submit([new_job("mine", unique=UniqueRule("k"))]))

    result = Project(folder).run("copy", "--from", SOURCE, "--to", TARGET, "--yes")

    assert result.exit_code == ExitCode.FAILED
    assert "Left out later" in result.stdout
    assert "Both are equal" in result.stdout


def test_a_job_that_differs_in_the_target_is_named(
    folder: Path, stores: tuple[Store, Store]
) -> None:
    stores[1].run(stores[1].jobs.submit([new_job("waits-3", payload=b'"other"')]))

    told = copied(Project(folder), SOURCE, TARGET)

    assert (told["equal"], told["differing"]) == (False, ["waits-3"])
    assert told["source"]["digest"] != told["target"]["digest"]


def test_a_store_at_work_is_not_copied_unless_forced(
    folder: Path, stores: tuple[Store, Store]
) -> None:
    assert claim(stores[0])
    project = Project(folder)

    result = project.run("copy", "--from", SOURCE, "--to", TARGET, "--yes")

    assert result.exit_code == ExitCode.USAGE
    assert "has 1 live worker and 1 running job;" in result.stderr
    told = copied(project, SOURCE, TARGET, "--force")
    assert (told["carried"], told["leftRunning"]) == (JOBS - 1, 1)


def test_one_store_is_not_copied_to_itself(folder: Path, stores: tuple[Store, Store]) -> None:
    result = Project(folder).run("copy", "--from", SOURCE, "--to", SOURCE, "--yes")

    assert result.exit_code == ExitCode.USAGE
    assert "name two stores" in result.stderr


def test_only_some_queues_are_copied(folder: Path, stores: tuple[Store, Store]) -> None:
    stores[0].run(stores[0].jobs.submit([new_job("letter", queue="mail")]))

    told = copied(Project(folder), SOURCE, TARGET, "--queue", "mail")

    assert (told["carried"], told["equal"]) == (1, True)
    assert [one.job.id for one in shown(stores[1])] == ["letter"]


def test_a_queue_the_source_does_not_know_is_refused(
    folder: Path, stores: tuple[Store, Store]
) -> None:
    way = ("copy", "--from", SOURCE, "--to", TARGET, "-q", "mail", "-q", "mial", "--yes")

    for arguments in (way, (*way, "--dry-run")):
        result = Project(folder).run(*arguments)
        assert result.exit_code == ExitCode.NOTHING_MATCHED
        assert "has no queue 'mial'; did you mean 'mail'?" in result.stderr
    assert not (folder / "target.db").exists()


def test_a_journey_through_every_store_ends_where_it_began(
    folder: Path, stores: tuple[Store, Store]
) -> None:
    schema, namespace = schemas().take(), f"test-{new_id()}"
    postgres, redis = schemas().url_of(schema), f"{redis_url()}?namespace={namespace}"
    try:
        way = (SOURCE, postgres, redis, TARGET)
        told = [copied(Project(folder), *pair) for pair in pairwise(way)]
        assert [one["carried"] for one in told] == [JOBS] * 3
        assert len({one["target"]["digest"] for one in told}) == 1
        assert shown(stores[1]) == shown(stores[0])
    finally:
        clear_namespace(redis_url(), namespace)
        schemas().give(schema)


def test_stores_that_name_values_in_another_order_compare_equal(
    folder: Path, stores: tuple[Store, Store]
) -> None:
    (job,) = shown(stores[0])[:1]
    orders = [{f"step-{one}": b"1" for one in numbers} for numbers in (range(9), range(8, -1, -1))]
    sides = [Side(), Side()]

    for side, values in zip(sides, orders, strict=True):
        side.add([replace(job, attached=replace(job.attached, values=values))])

    assert sides[0] == sides[1]


def test_what_transactions_asked_for_is_carried_too(
    folder: Path, stores: tuple[Store, Store]
) -> None:
    schema = schemas().take()
    url = schemas().url_of(schema)
    app = Packhorse(url)
    try:
        app.store.migrate()
        with psycopg.connect(url.partition("?")[0]) as connection:
            connection.execute("select 1")
            job = app.task(name="send")(lambda: None).using(tx=connection).enqueue()
        told = copied(Project(folder), url, TARGET)
        assert told["carried"] == 1
        record = stores[1].run(stores[1].inspection.job(job.id))
        assert record is not None
    finally:
        app.close()
        schemas().give(schema)


def test_records_are_carried_through_every_store_as_they_were(
    folder: Path, stores: tuple[Store, Store]
) -> None:
    source, target = stores
    named = [RecordId("schedule", "acme", f"{number:03}") for number in range(40)]
    large = [
        Put(one, b"\xff" * DOCUMENT_BYTES_MAX, order=number) for number, one in enumerate(named)
    ]
    for change in large:
        source.run(source.records.change([change, Add(change.id, {"n": 2**62}, "writer", 1)]))
    before = source.run(source.records.records(None, limit=100)).records
    target.run(target.records.change([Put(named[0], b"its own")]))
    schema, namespace = schemas().take(), f"test-{new_id()}"
    postgres, redis = schemas().url_of(schema), f"{redis_url()}?namespace={namespace}"
    try:
        told = [copied(Project(folder), *pair) for pair in pairwise((SOURCE, postgres, redis))]
        told.append(copied(Project(folder), redis, TARGET))
    finally:
        clear_namespace(redis_url(), namespace)
        schemas().give(schema)

    assert [one["settings"][-1] for one in told] == ["40 records", "40 records", "39 records"]
    after = target.run(target.records.records(None, limit=100)).records
    assert (after[0].document, after[1:]) == (b"its own", before[1:])


def test_the_journal_is_carried_through_every_store_once(
    folder: Path, stores: tuple[Store, Store]
) -> None:
    source, target = stores
    other = BATCH._replace(run="2")
    for name, group, kind in (
        ("done", BATCH, SettlementKind.COMPLETED),
        ("dead", BATCH, SettlementKind.DEAD),
        ("other", other, SettlementKind.DEAD),
    ):
        source.run(source.jobs.submit([member(name, group)]))
        [job] = [one for one in claim(source) if one.id == name]
        counted = msgspec.structs.replace(settlement_of(kind, job), counted=(2**40, 1))
        source.run(source.jobs.settle([counted]))
    source.run(source.leases.leave("worker"))
    source.run(source.records.change([Put(BATCH.record, b"{}"), Put(other.record, b"{}")]))
    source.run(source.jobs.redrive(["dead"]))
    target.run(target.records.change([Put(other.record, b"its own")]))
    before = source.run(source.journal.journal(BATCH, limit=100))
    schema, namespace = schemas().take(), f"test-{new_id()}"
    postgres, redis = schemas().url_of(schema), f"{redis_url()}?namespace={namespace}"
    try:
        for pair in pairwise((SOURCE, postgres, redis, TARGET)):
            for _ in range(2):  # nothing is told twice
                copied(Project(folder), *pair)
    finally:
        clear_namespace(redis_url(), namespace)
        schemas().give(schema)

    after = target.run(target.journal.journal(BATCH, limit=100))
    assert [msgspec.structs.replace(line, id=0) for line in after] == [
        msgspec.structs.replace(line, id=0) for line in before
    ]
    assert len(after) == 3
    assert target.run(target.journal.journal(other, limit=100)) == ()
    target.run(target.jobs.redrive(["other"]))  # which goes on as a member, with what it counted
    [line] = target.run(target.journal.journal(other, limit=100))
    assert (line.job_id, line.items, line.failed) == ("other", 2**40, 1)


# ------------------------------------------------------------------------------- the old store


def test_a_copied_store_is_marked_and_says_so_to_readers(
    folder: Path, stores: tuple[Store, Store]
) -> None:
    source, target = stores
    project = Project(folder)

    copied(project, SOURCE, TARGET)
    copied(project, SOURCE, TARGET)  # as one that was interrupted

    mark = source.run(source.transfer.copied())
    assert mark is not None
    assert mark.to == target.label
    assert target.run(target.transfer.copied()) is None
    listed = project.run("queues", "list", "--url", SOURCE)
    assert listed.exit_code == ExitCode.OK
    assert f"were copied to {target.label}" in listed.stderr


def test_the_mark_is_lifted_by_the_command_that_the_error_names(
    folder: Path, stores: tuple[Store, Store]
) -> None:
    source, _ = stores
    project = Project(folder)
    copied(project, SOURCE, TARGET)
    app = Packhorse(SOURCE)
    way = ("copy", "--undo", "--from", app.store.label)

    with pytest.raises(StoreCopied, match=re.escape(f"packhorse {' '.join(way)}")):
        app.submit(WIRE)
    assert project.run(*way, "--dry-run").exit_code == ExitCode.OK
    assert source.run(source.transfer.copied()) is not None
    assert project.run(*way, "--yes").exit_code == ExitCode.OK
    app.submit(WIRE)
    assert project.run(*way, "--to", TARGET).exit_code == ExitCode.USAGE
    app.close()


@contextmanager
def refusing(job_id: str, error: PackhorseError) -> Iterator[None]:
    """Have stores refuse to take over this job, and with it those of the same call."""
    carry_in = SqlTransfer.carry_in

    def refuse(transfer: SqlTransfer, jobs: Sequence[CarriedJob]) -> Any:
        if job_id in [one.job.id for one in jobs]:
            raise error
        return carry_in(transfer, jobs)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SqlTransfer, "carry_in", refuse)
        yield


def test_a_job_that_the_target_refuses_is_named_and_the_copy_can_go_on(
    folder: Path, stores: tuple[Store, Store]
) -> None:
    source, target = stores
    project, app = Project(folder), Packhorse(SOURCE)
    undo = f"packhorse copy --undo --from {source.label}"

    with refusing("waits-12", StoreRefused("its tags are too long for an index")):
        failed = project.run("copy", "--from", SOURCE, "--to", TARGET, "--yes")

    assert failed.exit_code == ExitCode.FAILED
    for said in ("STORE_REFUSED", "job waits-12", f"task {TASK}", f"queue '{QUEUE}'", "tags are"):
        assert said in failed.stderr
    for said in ("stays marked", "packhorse jobs cancel waits-12", undo):
        assert said in failed.stderr
    there = {one.job.id for one in shown(target)}
    assert "waits-11" in there
    assert not there & {"waits-12", "waits-13"}
    with pytest.raises(StoreCopied, match=r"are being copied .*run the copy again.*--undo"):
        app.submit(WIRE)
    listed = project.run("queues", "list", "--url", SOURCE)
    assert f"are being copied to {target.label}, since " in listed.stderr
    assert undo in listed.stderr
    assert "were copied" not in listed.stderr

    assert copied(project, SOURCE, TARGET)["equal"]
    with pytest.raises(StoreCopied, match="were copied"):
        app.submit(WIRE)
    app.close()


def test_a_copy_of_which_nothing_arrived_leaves_the_source_in_use(
    folder: Path, stores: tuple[Store, Store]
) -> None:
    source, target = stores

    with refusing(shown(source)[0].job.id, StoreRefused("it is too large")):
        failed = Project(folder).run("copy", "--from", SOURCE, "--to", TARGET, "--yes")

    assert failed.exit_code == ExitCode.FAILED
    assert f"{source.label} may be used as before" in failed.stderr
    assert source.run(source.transfer.copied()) is None
    assert shown(target) == ()


def test_a_copy_whose_answer_is_lost_leaves_the_mark(
    folder: Path, stores: tuple[Store, Store]
) -> None:
    source, _ = stores

    with refusing(shown(source)[0].job.id, StoreUnavailable("gone", maybe_stored=True)):
        failed = Project(folder).run("copy", "--from", SOURCE, "--to", TARGET, "--yes")

    assert failed.exit_code == ExitCode.STORE_UNREACHABLE
    mark = source.run(source.transfer.copied())
    assert mark is not None
    assert mark.under_way


def test_a_mark_of_an_earlier_copy_stays_when_a_later_one_fails(
    folder: Path, stores: tuple[Store, Store]
) -> None:
    source, _ = stores
    source.run(source.transfer.mark(Copied("there", 1, under_way=True)))

    with refusing(shown(source)[0].job.id, StoreRefused("it is too large")):
        failed = Project(folder).run("copy", "--from", SOURCE, "--to", TARGET, "--yes")

    assert "stays marked" in failed.stderr
    assert source.run(source.transfer.copied()) is not None


@pytest.mark.parametrize("more", [("--dry-run",), ("--queue", "mail", "--yes")])
def test_a_dry_run_and_a_copy_of_some_queues_mark_nothing(
    folder: Path, stores: tuple[Store, Store], more: tuple[str, ...]
) -> None:
    result = Project(folder).run("copy", "--from", SOURCE, "--to", TARGET, *more)

    assert result.exit_code == ExitCode.OK
    assert stores[0].run(stores[0].transfer.copied()) is None


def test_a_store_that_gets_its_jobs_back_is_in_use_again(
    folder: Path, stores: tuple[Store, Store]
) -> None:
    source, target = stores
    copied(Project(folder), SOURCE, TARGET)

    with refusing(shown(source)[0].job.id, StoreRefused("it is too large")):
        Project(folder).run("copy", "--from", TARGET, "--to", SOURCE, "--yes")
    assert source.run(source.transfer.copied()) is not None  # or jobs would run in both
    copied(Project(folder), TARGET, SOURCE)

    assert source.run(source.transfer.copied()) is None
    assert target.run(target.transfer.copied()) is not None
