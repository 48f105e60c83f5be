# SPDX-License-Identifier: MIT
"""The answer to a commit of a handler's transaction is lost: the store is asked what came of it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from packhorse.core.job import JobStatus
from packhorse.errors import StoreUnavailable, TransactionRefused
from packhorse.runtime.worker.attempt import Attempt, Ending, Stage
from packhorse.runtime.worker.handlers import HandlerBook
from packhorse.runtime.worker.transactions import _PAUSE_S, _PAUSE_S_MAX, WorkerTransaction
from packhorse.stores.plan import Plan
from tests.worker.support import Yard

MODULE = "packhorse.runtime.worker.transactions"


class Lossy:
    """A store whose commits are never answered, and that cannot be reached for some looks."""

    exclusive = False
    connection = None

    def __init__(self, yard: Yard, *, stored: bool, maybe: bool = True, away: int = 0) -> None:
        self.transactions = self
        self.away = away
        self.rolled_back = False
        self._store, self._stored, self._maybe = yard.store, stored, maybe

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def run(self, plan: Plan[Any]) -> Any:
        if self.away:
            self.away -= 1
            raise StoreUnavailable("it cannot be reached")
        return self._store.run(plan)

    async def arun(self, plan: Plan[Any]) -> Any:
        return self.run(plan)

    def begin(self, lease_s: float) -> Lossy:
        assert lease_s == 30.0
        return self

    async def abegin(self, lease_s: float) -> Lossy:
        return self.begin(lease_s)

    def finish(self, steps: Any) -> bool:
        if self._stored:
            self._store.run(Plan("settle", steps))
        raise StoreUnavailable("the answer was lost", maybe_stored=self._maybe)

    async def afinish(self, steps: Any) -> bool:
        return self.finish(steps)

    def roll_back(self) -> None:
        self.rolled_back = True

    async def aroll_back(self) -> None:
        self.rolled_back = True


class Booking:
    """One attempt of a job, and the transaction in which its handler completes it."""

    def __init__(self, store: Lossy, yard: Yard, *, lease_lost: bool = False) -> None:
        self.job_id = yard.submit("book")
        job = yard.claim_by_hand("w", "book")
        plan = HandlerBook(yard.registry, {}, 60_000_000).find(job)
        self.attempt = Attempt(job, plan, 0, stage=Stage.RUNNING)
        worker = SimpleNamespace(
            store=store,
            lease_s=30.0,
            lease=SimpleNamespace(lost_since=lambda _epoch: lease_lost),
            progress=SimpleNamespace(take_last=lambda _attempt: None),
            redact=None,
        )
        self.transaction = WorkerTransaction(self.attempt, cast("Any", worker))

    async def commit(self, *, waits: bool, told: Ending | None = None) -> None:
        """Begin and commit, as a coroutine or in a thread; it may be told to stop in between."""
        transaction = self.transaction
        completion = transaction.check("done")
        if waits:
            await transaction.abegin()
            self.attempt.ending = told
            await transaction.acommit(completion)
        else:
            transaction.begin()
            self.attempt.ending = told
            transaction.commit(completion)


@pytest.fixture
def yard() -> Yard:
    def book() -> str:
        raise NotImplementedError

    made = Yard()
    made.task(book)
    return made


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it waits between looks, instead of waiting."""
    waits: list[float] = []
    really = asyncio.sleep

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await really(0)

    monkeypatch.setattr(
        f"{MODULE}.threading", SimpleNamespace(Event=lambda: SimpleNamespace(wait=waits.append))
    )
    monkeypatch.setattr(f"{MODULE}.asyncio.sleep", sleep)
    return waits


both = pytest.mark.parametrize("waits", [False, True])


@both
async def test_what_was_stored_is_found_though_the_store_is_away_for_a_while(
    yard: Yard, pauses: list[float], *, waits: bool
) -> None:
    booking = Booking(Lossy(yard, stored=True, away=7), yard)

    await booking.commit(waits=waits)

    assert booking.transaction.committed
    assert yard.status(booking.job_id) is JobStatus.COMPLETED
    assert pauses[0] == _PAUSE_S
    assert pauses == [min(_PAUSE_S_MAX, _PAUSE_S * 2**number) for number in range(7)]


@both
@pytest.mark.parametrize(
    ("stored", "maybe", "away", "lease_lost"),
    [
        (False, True, 0, False),  # it is looked, and not found
        (True, False, 0, False),  # the store says that it has not stored it, and is believed
        (True, True, 1, True),  # no caller may look for longer than the job is held
    ],
)
async def test_what_was_not_stored_or_cannot_be_found_is_raised(
    yard: Yard,
    pauses: list[float],
    *,
    waits: bool,
    stored: bool,
    maybe: bool,
    away: int,
    lease_lost: bool,
) -> None:
    store = Lossy(yard, stored=stored, maybe=maybe, away=away)
    booking = Booking(store, yard, lease_lost=lease_lost)

    with pytest.raises(StoreUnavailable):
        await booking.commit(waits=waits)

    assert not booking.transaction.committed
    assert pauses == []


@both
async def test_an_attempt_that_is_told_to_stop_meanwhile_is_rolled_back(
    yard: Yard, *, waits: bool
) -> None:
    store = Lossy(yard, stored=True)
    booking = Booking(store, yard)

    with pytest.raises(TransactionRefused, match="told to stop"):
        await booking.commit(waits=waits, told=Ending.CANCEL)

    assert store.rolled_back
    assert yard.status(booking.job_id) is JobStatus.PROCESSING
