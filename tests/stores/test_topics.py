# SPDX-License-Identifier: MIT
"""Topics on every store: one event, and a job of its own for every subscriber."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from packhorse import JobStatus, Packhorse, QueueFull, RetryPolicy
from packhorse.stores.requests import JobFilter

NewApp = Callable[[], Packhorse]


class Shop:
    """An app with two subscribers, one of which fails when it is told to."""

    def __init__(self, app: Packhorse) -> None:
        self.app = app
        self.heard: list[tuple[str, Any]] = []
        paid = app.topic("order.paid")

        @paid.subscribe
        def ship(order: int) -> None:
            self.heard.append(("ship", order))

        @paid.subscribe
        @app.task(queue="mail", retry=RetryPolicy(max_retries=1, initial_delay=0.001, jitter=False))
        def thank(event: dict[str, Any]) -> None:
            self.heard.append(("thank", event["order"]))
            if event["order"] < 0:
                raise ValueError("no such order")

    def run(self) -> None:
        self.app.run(burst=True)


@pytest.mark.req("S2-20")
def test_an_event_reaches_subscribers_whose_code_its_producer_does_not_know(
    new_app: NewApp,
) -> None:
    shop, producer = Shop(new_app()), new_app()
    shop.run()

    jobs = producer.topic("order.paid").publish({"order": 17})
    shop.run()

    assert [job.info().task for job in jobs] == ["ship", "thank"]
    assert [job.info().queue for job in jobs] == ["default", "mail"]
    assert len({job.info().trace_id for job in jobs}) == 1
    assert sorted(shop.heard) == [("ship", 17), ("thank", 17)]
    assert [each.name for each in producer.topics.all()] == ["order.paid"]


@pytest.mark.req("S2-20")
def test_each_subscriber_has_retries_and_dead_letters_of_its_own(new_app: NewApp) -> None:
    shop = Shop(new_app())

    ship, thank = shop.app.topic("order.paid").publish({"order": -1})
    shop.run()

    assert ship.status() is JobStatus.COMPLETED
    assert thank.status() is JobStatus.DEAD
    assert sorted(shop.heard) == [("ship", -1), ("thank", -1), ("thank", -1)]


def test_an_event_published_twice_gives_nothing_twice(new_app: NewApp) -> None:
    shop, other = Shop(new_app()), new_app()
    topic = shop.app.topic("order.paid")
    shop.run()
    first = topic.publish({"order": 17}, idempotency_key="o-17")
    shop.run()

    again = other.topic("order.paid").publish({"order": 17}, idempotency_key="o-17")
    shop.run()

    assert [job.id for job in again] == [job.id for job in first]
    assert all(job.deduplicated for job in again)
    assert len(shop.heard) == 2
    assert not {job.id for job in topic.publish({"order": 17})} & {job.id for job in first}


async def test_a_subscriber_declared_later_gets_later_events_only(new_app: NewApp) -> None:
    producer, first, second = new_app(), new_app(), new_app()
    heard: list[tuple[str, int]] = []
    topic = producer.topic("tick")

    @first.topic("tick").subscribe
    async def early(number: int) -> None:
        heard.append(("early", number))

    @second.topic("tick").subscribe(queue="other")
    async def late(number: int) -> None:
        heard.append(("late", number))

    assert await topic.apublish({"number": 0}) == []
    await first.arun(burst=True)
    await topic.apublish({"number": 1}, idempotency_key="1")
    await second.arun(burst=True)
    await topic.apublish({"number": 2})
    again = await topic.apublish({"number": 1}, idempotency_key="1")
    await first.arun(burst=True)
    await second.arun(burst=True)

    assert sorted(heard) == [("early", 1), ("early", 2), ("late", 1), ("late", 2)]
    assert [job.deduplicated for job in again] == [True, False]  # only the new one had not got it


def test_an_event_is_stored_for_all_subscribers_or_for_none(new_app: NewApp) -> None:
    app = new_app()
    app.queue("mail", max_depth=1)
    Shop(app)
    app.topic("order.paid").publish({"order": 1})

    with pytest.raises(QueueFull):
        app.topic("order.paid").publish({"order": 2})

    page = app.store.run(app.store.inspection.search(JobFilter(), limit=10))
    assert len(page.jobs) == 2


def test_topics_whose_names_begin_alike_are_apart(new_app: NewApp) -> None:
    app, producer = new_app(), new_app()
    for name in ("order", "order.paid", "order.paid2", "ORDER", "a", "z"):
        task = f"of_{name.replace('.', '_')}_{name.isupper()}".lower()
        app.topic(name).subscribe(app.task(name=task)(noop))
    app.run(burst=True)

    reached = {
        name: [job.info().task for job in producer.topic(name).publish(None)]
        for name in ("order", "order.paid", "order.", "zz")
    }

    assert reached == {
        "order": ["of_order_false"],
        "order.paid": ["of_order_paid_false"],
        "order.": [],
        "zz": [],
    }


def noop() -> None:
    """Does nothing."""
