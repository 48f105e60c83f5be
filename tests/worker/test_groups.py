# SPDX-License-Identifier: MIT
"""The journal is folded: by one worker at a time, each line once, and before a burst ends."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from typing import Any

import msgspec
import pytest

from packhorse.core.clock import SystemChance, new_id
from packhorse.core.job import JobOptions, NewJob
from packhorse.core.policies.journal import Group, JournalLine
from packhorse.core.policies.records import Put, RecordId
from packhorse.errors import StoreUnavailable
from packhorse.runtime.services.groups import Fold, Groups
from packhorse.runtime.services.service import ServiceContext
from packhorse.runtime.worker import base_runtime as worker_runtime
from packhorse.stores.plan import Plan
from packhorse.stores.protocol import Store
from packhorse.stores.records import Changed
from packhorse.testing import TestApp
from tests.worker.schedule_support import every_store
from tests.worker.support import Yard

__all__ = ["every_store"]  # pytest finds the fixture here

GROUP = Group("batch", "", "sums", "1")


class Summing:
    """Keeps how many have ended, and submits a job when all have."""

    kind = "batch"

    def __init__(self, wanted: int = 0) -> None:
        self.wanted = wanted
        self.refused: list[Any] = []

    def fold(
        self, store: Store, group: Group, lines: Sequence[JournalLine]
    ) -> Generator[Plan[Any], Any, Fold]:
        record = yield store.records.record(group.record)
        ended = (0 if record is None else msgspec.json.decode(record.document)) + len(lines)
        version = 0 if record is None else record.version
        jobs = (NewJob(new_id(), "after", b"{}"),) if ended == self.wanted else ()
        put = Put(group.record, msgspec.json.encode(ended), version)
        return Fold(tuple(line.id for line in lines), (put,), jobs)

    def folded(
        self, store: Store, group: Group, fold: Fold, changed: Changed
    ) -> Generator[Plan[Any], Any, None]:
        assert group == GROUP
        self.refused += changed.conflicts
        yield from ()


class Trouble:
    """What a worker is told about calls that fail."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def failed(self, operation: str, error: BaseException) -> None:
        self.told.append(f"{operation}: {error}")

    def worked(self, operation: str) -> None:
        if self.told and not self.told[-1].endswith("works"):
            self.told.append(f"{operation} works")


class SummingSome(Summing):
    """Cannot fold groups of some names, as long as it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = True
        self.tries = 0

    def fold(
        self, store: Store, group: Group, lines: Sequence[JournalLine]
    ) -> Generator[Plan[Any], Any, Fold]:
        if group.key.startswith("bad") and self.broken:
            self.tries += 1
            raise ValueError("it cannot be read")
        return (yield from super().fold(store, group, lines))

    def folded(
        self, store: Store, group: Group, fold: Fold, changed: Changed
    ) -> Generator[Plan[Any], Any, None]:
        del store, group, fold, changed
        yield from ()


def member(number: int, group: Group = GROUP) -> NewJob:
    options = JobOptions(member=group.member(str(number)))
    return NewJob(new_id(), "count", b"{}", options=options)


def declare(app: TestApp) -> list[str]:
    ran: list[str] = []

    @app.task
    def count() -> None:
        ran.append("count")

    @app.task
    def after() -> None:
        ran.append("after")

    return ran


def ended(app: TestApp) -> int:
    record = app.store.run(app.store.records.record(GROUP.record))
    return 0 if record is None else int(msgspec.json.decode(record.document))


def groups(app: TestApp, worker: str, *foldings: Summing, tell: Trouble | None = None) -> Groups:
    told = tell or Trouble()
    return Groups(
        *(ServiceContext(app.store, app.clock, SystemChance(), app.bus, worker), foldings),
        failed=told.failed,
        worked=told.worked,
    )


def test_a_burst_ends_only_when_its_groups_are_folded_and_what_follows_has_run(
    packhorse_app: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = declare(packhorse_app)
    monkeypatch.setattr(worker_runtime, "known_foldings", lambda *_given: (Summing(5),))
    jobs = [member(number) for number in range(5)]
    packhorse_app.store.run(packhorse_app.store.jobs.submit(jobs))

    packhorse_app.run_jobs()

    assert ran == [*["count"] * 5, "after"]


def test_many_folders_count_each_line_once(
    packhorse_app: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(packhorse_app)
    monkeypatch.setattr(worker_runtime, "known_foldings", lambda *_given: ())
    jobs = [member(number) for number in range(40)]
    packhorse_app.store.run(packhorse_app.store.jobs.submit(jobs))
    packhorse_app.run_jobs()

    async def fold() -> None:
        folders = [groups(packhorse_app, f"worker {n}", Summing()) for n in range(6)]
        await asyncio.gather(*(each.fold_all() for each in folders))

    asyncio.run(fold())

    assert ended(packhorse_app) == 40


def test_who_is_not_on_duty_leaves_the_lines_to_who_is(
    packhorse_app: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(packhorse_app)
    monkeypatch.setattr(worker_runtime, "known_foldings", lambda *_given: ())
    duty = Put(RecordId("duty", "", "groups"), b"another", keep_us=10_000_000)
    store = packhorse_app.store
    store.run(store.records.change([duty]))
    store.run(store.jobs.submit([member(1)]))
    packhorse_app.run_jobs()

    async def fold() -> tuple[int, int]:
        service = groups(packhorse_app, "this", Summing())
        await service.run_once()
        meanwhile = ended(packhorse_app)
        store.run(store.records.change([Put(duty.id, b"this", keep_us=10_000_000)]))
        await service.run_once()
        return meanwhile, ended(packhorse_app)

    assert asyncio.run(fold()) == (0, 1)


def test_three_seconds_after_a_worker_on_duty_was_killed_another_one_folds(
    packhorse_app: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(packhorse_app)
    monkeypatch.setattr(worker_runtime, "known_foldings", lambda *_given: ())
    store, seen = packhorse_app.store, []

    def end_one(number: int) -> None:
        store.run(store.jobs.submit([member(number)]))
        packhorse_app.run_jobs()

    async def fold() -> None:
        killed, other = (groups(packhorse_app, name, Summing()) for name in ("killed", "other"))
        await killed.run_once()
        await asyncio.to_thread(end_one, 2)
        for after_s in (0, 2.9, 0.2):
            packhorse_app.clock.advance(after_s)
            await other.run_once()
            seen.append(ended(packhorse_app))

    end_one(1)
    asyncio.run(fold())

    assert seen == [1, 1, 2]


def test_lines_of_a_kind_that_is_not_known_are_left_alone(packhorse_app: TestApp) -> None:
    declare(packhorse_app)
    other = Group("later", "", "kind", "1")
    store = packhorse_app.store
    store.run(store.jobs.submit([member(1, other)]))

    packhorse_app.run_jobs()

    assert len(store.run(store.journal.journal(other, limit=10))) == 1


def test_a_group_that_fails_is_told_and_set_aside_while_the_others_go_on(
    packhorse_app: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(packhorse_app)
    monkeypatch.setattr(worker_runtime, "known_foldings", lambda *_given: ())
    store, bad = packhorse_app.store, Group("batch", "", "bad", "1")
    store.run(store.jobs.submit([member(1, bad)]))
    packhorse_app.run_jobs()
    store.run(store.jobs.submit([member(2)]))
    packhorse_app.run_jobs()
    folding, told = SummingSome(), Trouble()

    async def fold() -> None:
        service = groups(packhorse_app, "this", folding, tell=told)
        await service.fold_all()
        assert (ended(packhorse_app), folding.tries) == (1, 1)
        await service.fold_all()
        assert folding.tries == 1  # it rests
        folding.broken = False
        packhorse_app.clock.advance(120)
        await service.fold_all()

    asyncio.run(fold())

    assert store.run(store.journal.journal_groups(limit=10)) == ()
    assert told.told == ["fold: it cannot be read", "fold works"]


def test_groups_that_cannot_be_folded_do_not_hide_those_that_can(
    packhorse_app: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(packhorse_app)
    monkeypatch.setattr(worker_runtime, "known_foldings", lambda *_given: ())
    store = packhorse_app.store
    kinds = [Group(("later", "batch")[n % 2], "", f"bad {n}", "1") for n in range(230)]
    store.run(store.jobs.submit([member(1, each) for each in kinds]))
    packhorse_app.run_jobs()
    store.run(store.jobs.submit([member(2)]))
    packhorse_app.run_jobs()

    asyncio.run(groups(packhorse_app, "this", SummingSome()).fold_all())

    assert ended(packhorse_app) == 1


def test_a_store_that_is_away_is_no_fault_of_the_group(
    packhorse_app: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(packhorse_app)
    monkeypatch.setattr(worker_runtime, "known_foldings", lambda *_given: ())
    store, told = packhorse_app.store, Trouble()
    store.run(store.jobs.submit([member(1)]))
    packhorse_app.run_jobs()

    class Away(Summing):
        def fold(
            self, store: Store, group: Group, lines: Sequence[JournalLine]
        ) -> Generator[Plan[Any], Any, Fold]:
            raise StoreUnavailable("it is away")

    with pytest.raises(StoreUnavailable):
        asyncio.run(groups(packhorse_app, "this", Away(), tell=told).fold_all())

    assert told.told == []


async def test_a_worker_that_goes_on_folds_soon_after_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    yard, done = Yard(), asyncio.Event()
    monkeypatch.setattr(worker_runtime, "known_foldings", lambda *_given: (Summing(1),))

    async def count() -> None:
        return

    async def after() -> None:
        done.set()

    yard.task(count)
    yard.task(after)

    async with yard.running():
        yard.do(yard.store.jobs.submit([member(1)]))
        await asyncio.wait_for(done.wait(), 10)


def test_a_group_that_cannot_be_folded_rests_twice_as_long_each_time(
    packhorse_app: TestApp,
) -> None:
    service = groups(packhorse_app, "w", Summing())
    rests = []

    for _ in range(6):
        service._rest(GROUP, ValueError("not this one"))
        rests.append(service._resting[GROUP].next_s)

    assert rests == [4, 8, 16, 32, 60, 60]
