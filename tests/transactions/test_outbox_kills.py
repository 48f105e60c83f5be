# SPDX-License-Identifier: MIT
"""An outbox whose producers and drainers are killed at any instant: each job comes once."""

from __future__ import annotations

import os
import random
import select
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from packhorse.client.outbox import outbox, table
from packhorse.client.outbox.table import OutboxBatch
from packhorse.client.sealed_store import plain_store
from packhorse.core.job import JobStatus
from packhorse.stores.protocol import Store
from packhorse.stores.requests import JobFilter
from tests.support.children import fork
from tests.transactions.outbox_support import Outboxed

#: Kept small: an ordinary run is to stay short.
_PRODUCERS = 8
_DRAINERS = 10
_LONGEST_S = 0.03
_PATIENCE_S = 20.0


@pytest.fixture
def orders(outboxed: Outboxed) -> Outboxed:
    return outboxed


def killed_at_random(work: Callable[[Callable[[], None]], None], chance: random.Random) -> None:
    """Do it in a process that is killed a moment after it has said that it begins."""
    heard, said = os.pipe()
    child = fork(lambda: work(lambda: _said(said)))
    assert select.select([heard], [], [], _PATIENCE_S)[0]
    time.sleep(chance.random() * _LONGEST_S)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(heard)
    os.close(said)


def _said(pipe: int) -> None:
    os.write(pipe, b".")


def produce(orders: Outboxed, first: int, begins: Callable[[], None]) -> None:
    """One order after another, each with its job, until killed."""
    with orders.elsewhere(outbox=True) as app:
        send = app.tasks["send"]
        for number in range(first, first + 1000):
            with orders.driver() as open_one:
                open_one.execute(orders.insert(f"{number:06}"))
                send.using(tx=open_one.tx).enqueue(f"{number:06}")
            begins()


def drain(orders: Outboxed, begins: Callable[[], None]) -> None:
    """Deliver until killed."""
    with orders.elsewhere(outbox=True) as app:
        [outbox] = app.outboxes
        outbox.state()
        app.store.facts()
        begins()
        for _ in range(10_000):
            outbox.drain(app.store)


@pytest.mark.req("S2-6")
def test_jobs_follow_their_rows_however_often_who_writes_and_who_drains_is_killed(
    orders: Outboxed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "STALE_US", 0)  # who was killed is succeeded at once
    monkeypatch.setattr(table, "ADMITTED_MAX", 5)
    chance = random.Random(17)
    for number in range(_PRODUCERS):
        killed_at_random(partial(produce, orders, number * 1000), chance)
    written = orders.names()
    assert orders.waiting() == len(written) > 0  # before the commit neither, after it both

    for _ in range(_DRAINERS):
        killed_at_random(partial(drain, orders), chance)

    orders.run()
    assert orders.waiting() == 0
    assert Counter(orders.ran) == Counter(written)
    store = orders.app.store
    page = store.run(store.inspection.search(JobFilter(), limit=10_000))
    assert [job.status for job in page.jobs] == [JobStatus.COMPLETED] * len(written)


def _write(orders: Outboxed, name: str) -> None:
    with orders.driver() as open_one:
        open_one.execute(orders.insert(name))
        orders.send.using(tx=open_one.tx).enqueue(name)


def test_who_was_stopped_before_it_delivered_delivers_nothing_twice(
    orders: Outboxed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "STALE_US", 0)
    _write(orders, "one")
    store = orders.app.store
    with orders.elsewhere(outbox=True) as app:
        batch = app.outboxes[0]._take()  # and here its process is stopped
        assert batch is not None
        assert orders.outbox.drain(store) == 1
        orders.run()
        store.run(store.jobs.delete(JobFilter(), limit=10))

        outbox.deliver(plain_store(app.store), batch)

    orders.run()
    assert orders.ran == ["one"]


def test_of_two_threads_one_delivers_a_batch(
    orders: Outboxed, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(orders, "one")
    taken: list[object] = []
    inner = outbox.deliver

    def deliver(store: Store, batch: OutboxBatch) -> None:
        taken.append(orders.outbox._take())  # as another thread would, meanwhile
        inner(store, batch)

    monkeypatch.setattr(outbox, "deliver", deliver)
    orders.outbox.drain(orders.app.store)
    monkeypatch.setattr(outbox, "deliver", _failing)
    _write(orders, "two")
    with pytest.raises(OSError, match="gone"):
        orders.outbox.drain(orders.app.store)
    monkeypatch.setattr(outbox, "deliver", inner)

    assert taken == [None]
    assert orders.outbox.drain(orders.app.store) == 1  # at once: it knows that it has failed


def _failing(store: Store, batch: OutboxBatch) -> None:
    del store, batch
    raise OSError("the network is gone")
