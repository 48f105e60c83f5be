# SPDX-License-Identifier: MIT
"""`tx=`: an event is there if the user's transaction commits, and never was if not."""

from __future__ import annotations

import contextlib

import pytest

from packhorse import JobStatus
from packhorse.errors import JobNotFound
from tests.transactions.support import ASYNC, SYNC, Orders


class Undone(Exception):
    """The user's own."""


def test_an_event_commits_and_rolls_back_with_the_rows_of_its_transaction(orders: Orders) -> None:
    topic, open_tx = orders.app.topic("order.paid"), SYNC[0]
    topic.subscribe(orders.send)
    orders.app.run(burst=True)

    with open_tx(orders) as open_one:
        open_one.execute(orders.insert("a"))
        (job,) = topic.publish({"order": "a"}, tx=open_one.tx)
        with pytest.raises(JobNotFound):
            job.status()
    with contextlib.suppress(Undone), open_tx(orders) as open_one:
        open_one.execute(orders.insert("b"))
        (never,) = topic.publish({"order": "b"}, tx=open_one.tx)
        raise Undone

    assert job.status() is JobStatus.QUEUED
    with pytest.raises(JobNotFound):
        never.status()
    assert (orders.names(), orders.run()) == (["a"], ["a"])


async def test_an_event_of_one_key_in_two_transactions_gives_nothing_twice(
    orders: Orders,
) -> None:
    topic, open_tx = orders.app.topic("order.paid"), ASYNC[0]
    topic.subscribe(orders.send)

    for _ in range(2):
        async with open_tx(orders) as open_one:
            await topic.apublish({"order": "a"}, idempotency_key="o-a", tx=open_one.tx)
    await orders.app.arun(burst=True)

    assert orders.ran == ["a"]
