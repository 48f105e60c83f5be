# SPDX-License-Identifier: MIT
"""Subscribers: whose declaration holds, when one is retired, and what an event becomes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from packhorse import ConfigError, Context, Packhorse, PayloadError, Unique
from packhorse.client import topics
from packhorse.core.clock import SECOND_US, SystemChance
from packhorse.core.job import NewJob
from packhorse.core.releases import Release
from packhorse.core.topics import (
    SubscriberDeclaration,
    SubscriberDocument,
    TopicEvent,
    declared,
    doubted,
    event_jobs,
    put_subscriber,
    reached,
)
from packhorse.errors import UsageError
from packhorse.runtime.services.service import ServiceContext
from packhorse.runtime.services.subscribers import Subscribers
from packhorse.stores.memory import MemoryStore
from packhorse.testing import TestApp

MINUTE_US = 60 * SECOND_US
OLD, NEW = Release("old", 1), Release("new", 2)


def said(task: str = "mail", **fields: Any) -> SubscriberDeclaration:
    return SubscriberDeclaration("order.paid", NewJob("", task, b"{}"), **fields)


def stored(task: str = "mail", release: Release = OLD, **fields: Any) -> SubscriberDocument:
    made = declared(None, said(task, **fields), release, 0)
    assert made is not None
    return made


def payload(event: object, names: tuple[str, ...], required: tuple[str, ...]) -> Any:
    made = TopicEvent("order.paid", "1", msgspec.json.encode(event), {})
    (job,) = event_jobs(made, [said(names=names, required=required)])
    return msgspec.json.decode(job.payload)


@pytest.mark.parametrize(
    ("event", "names", "required", "arguments"),
    [
        ({"order": 17}, ("order",), ("order",), {"order": 17}),
        ({"order": 17, "more": 1}, ("order",), ("order",), {"order": 17}),
        ({"order": 17}, ("order", "note"), ("order",), {"order": 17}),
        ({"order": 17}, ("event",), ("event",), {"event": {"order": 17}}),
        ({"order": 17}, ("event", "note"), ("event",), {"event": {"order": 17}}),
        ({"order": 17}, ("event",), (), {"event": {"order": 17}}),
        (17, ("order",), ("order",), {"order": 17}),
        ([1, 2], ("order",), ("order",), {"order": [1, 2]}),
        (17, (), (), {}),
        ({"order": 17}, (), (), {}),
        # What could not be taken goes to the dead letters of that subscriber alone.
        ({"order": 17}, ("a", "b"), ("a", "b"), {"payload": {"order": 17}}),
    ],
)
def test_a_task_gets_the_fields_it_names_or_the_event_as_it_is(
    event: object, names: tuple[str, ...], required: tuple[str, ...], arguments: object
) -> None:
    assert payload(event, names, required) == arguments


def test_what_is_published_wins_over_what_a_subscriber_says() -> None:
    job = msgspec.structs.replace(said().job, priority=4, tags=("kept",))
    made = TopicEvent("order.paid", "1", b"{}", {"priority": 0})

    (found,) = event_jobs(made, [msgspec.structs.replace(said(), job=job)])

    assert (found.priority, found.tags) == (0, ("kept",))


def test_the_newest_release_holds_while_it_lives() -> None:
    before = stored(release=NEW)
    other = said(names=("order",))

    assert declared(before, other, OLD, MINUTE_US) is None
    taken_back = declared(before, other, OLD, MINUTE_US, holder_lives=False)
    assert taken_back is not None
    assert (taken_back.names, taken_back.release) == (("order",), OLD)
    newer = declared(stored(release=OLD), other, NEW, MINUTE_US)
    assert newer is not None
    assert (newer.names, newer.release) == (("order",), NEW)


def test_events_reach_what_is_stored_and_what_only_this_process_knows_yet() -> None:
    kept, gone = stored("kept"), msgspec.structs.replace(stored("gone"), retired_us=1)

    found = reached([kept, gone], [said("kept"), said("gone"), said("new")])

    assert [each.job.task for each in found] == ["kept", "new"]


def test_a_task_that_was_renamed_gets_an_event_once() -> None:
    found = reached([stored("mail"), stored("send_mail", aliases=("mail",))], [])

    assert [each.job.task for each in found] == ["send_mail"]


def test_a_subscriber_is_retired_once_workers_of_its_queue_have_missed_it_for_an_hour() -> None:
    subscriber = stored()
    assert doubted(subscriber, 19 * MINUTE_US) is None

    silent = doubted(subscriber, 20 * MINUTE_US)
    assert silent is not None
    assert silent.state == "silent"
    assert doubted(silent, 79 * MINUTE_US) is None
    gone = doubted(silent, 80 * MINUTE_US)
    assert gone is not None
    assert gone.state == "retired"
    back = declared(gone, said(), OLD, 90 * MINUTE_US)
    assert back is not None
    assert back.state == "active"


def test_a_whole_night_without_workers_loses_no_event(packhorse_app: TestApp) -> None:
    app = packhorse_app
    heard: list[int] = []

    @app.topic("tick").subscribe
    def note(number: int) -> None:
        heard.append(number)

    app.run_jobs()
    app.clock.advance(12 * 3_600)
    app.topic("tick").publish({"number": 1})
    app.run_jobs()

    assert heard == [1]


async def test_what_newer_code_does_not_subscribe_gets_events_until_it_is_retired(
    packhorse_app: TestApp,
) -> None:
    app = packhorse_app
    removed = said("removed")
    old, new = service(app, [removed]), service(app, [], release="new")
    elsewhere = service(app, [], queues=("other",))
    await old.run_once()

    for expected in (["removed"], ["removed"], []):
        jobs = await app.topic("order.paid").apublish({})
        assert [(await job.ainfo()).task for job in jobs] == expected
        app.clock.advance(3_600)
        await elsewhere.run_once()  # serves another queue, so it cannot tell
        await new.run_once()
    assert [each.state for each in app.topics.get("order.paid").subscribers] == ["retired"]

    await service(app, [removed], release="back").run_once()
    assert len(await app.topic("order.paid").apublish({})) == 1


async def test_a_subscriber_that_newer_code_wrote_in_another_shape_is_left_alone(
    packhorse_app: TestApp,
) -> None:
    app = packhorse_app
    put = put_subscriber(stored("removed"), 0)
    await app.store.arun(app.store.records.change([msgspec.structs.replace(put, document=b"7")]))

    await service(app, [], release="new").run_once()

    record = await app.store.arun(app.store.records.record(put.id))
    assert record is not None
    assert record.document == b"7"


def service(
    app: TestApp,
    subscribers: list[SubscriberDeclaration],
    *,
    release: str = "old",
    queues: tuple[str, ...] = ("default",),
) -> Subscribers:
    return Subscribers(
        ServiceContext(app.store, app.clock, SystemChance(), app.bus, "w"),
        subscribers=subscribers,
        queues=queues,
        release=release,
    )


def test_a_subscriber_may_have_a_context_options_and_several_topics(
    packhorse_app: TestApp,
) -> None:
    app = packhorse_app
    heard: list[tuple[str, int]] = []

    @app.topic("paid").subscribe(queue="mail", name="told")
    def tell(ctx: Context, order: int) -> None:
        heard.append((ctx.job.id, order))

    app.topic("refunded").subscribe(tell.using(priority="low"))
    (paid,) = app.topic("paid").publish({"order": 1})
    (refunded,) = app.topic("refunded").publish({"order": 2})
    app.run_jobs()

    assert heard == [(paid.id, 1), (refunded.id, 2)]
    assert (paid.info().queue, paid.info().task) == ("mail", "told")
    assert [job.info().priority for job in (paid, refunded)] == ["normal", "low"]


def test_what_would_be_wrong_for_every_event_is_refused(packhorse_app: TestApp) -> None:
    app = packhorse_app

    @app.task(unique=Unique())
    def once(order: int) -> None:
        """Runs once."""

    @app.task
    def plain(order: int) -> None:
        """Runs."""

    with pytest.raises(ConfigError, match="cannot name a topic"):
        app.topic("a/b")
    with pytest.raises(ConfigError, match="takes unique from arguments"):
        app.topic("t").subscribe(once)
    with pytest.raises(ConfigError, match="has job_id=, which would be the same"):
        app.topic("t").subscribe(plain.using(job_id="1"))
    with pytest.raises(ConfigError, match="is a task already"):
        app.topic("t").subscribe(plain, queue="mail")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="there is no option 'job_id'"):
        app.topic("t").publish({}, job_id="1")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="is a call"):
        app.topic("t").publish(plain.call(1))
    with pytest.raises(PayloadError):
        app.topic("t").publish({"moment": float("nan")})


def test_apps_keep_their_subscribers_apart() -> None:
    one, other = Packhorse("memory://"), Packhorse("memory://")
    one.topic("t").subscribe(one.task(print_nothing))

    assert len(one.topic("t").publish({})) == 1
    assert other.topic("t").publish({}) == []


def test_an_event_for_more_subscribers_than_one_transaction_takes_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = Packhorse("memory://")
    for name in ("mail", "bill"):
        app.topic("t").subscribe(app.task(name=name)(print_nothing))

    monkeypatch.setattr(topics, "ATOMIC_JOBS_MAX", 1)
    with pytest.raises(UsageError, match="for 2 subscribers"):
        app.topic("t").publish({})

    monkeypatch.setattr(topics, "ATOMIC_JOBS_MAX", 2)
    assert len(app.topic("t").publish({})) == 2


def print_nothing() -> None:
    """Does nothing."""


def test_a_publish_reads_no_further_than_the_subscribers_of_its_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topics, "_PAGE", 2)
    verbs: list[str] = []
    app = Packhorse(store=MemoryStore(faults=lambda verb, when: verbs.append(f"{verb} {when}")))
    for topic, tasks in (("order.paid", "m"), ("order.sent", "nopqrst")):
        for task in tasks:
            subscriber = msgspec.structs.replace(stored(task), topic=topic)
            app.store.run(app.store.records.change([put_subscriber(subscriber, 0)]))

    def published(topic: str) -> tuple[int, int]:
        """How many jobs an event has, and how often the store was asked for subscribers."""
        verbs.clear()
        return len(app.topic(topic).publish({})), verbs.count("records before")

    assert published("order.paid") == (1, 1)
    assert published("order.sent") == (7, 4)
