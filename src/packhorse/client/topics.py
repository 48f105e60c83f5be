# SPDX-License-Identifier: MIT
"""Topics of an app: each event becomes one job for every task that has subscribed.

    paid = app.topic("order.paid")
    @paid.subscribe                        a function, or a task; options as of app.task
    paid.publish({"order": 17})            and apublish; tx=connection, idempotency_key="o-17"
    app.topics.all()                       who has subscribed; every verb has an a-twin

Workers write down who has subscribed (`runtime.services.subscribers`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Unpack

import msgspec

from packhorse.call import Call
from packhorse.client.connection import Connection
from packhorse.client.publishing import PublishOptions, apublish, declaration, publish
from packhorse.client.schedules import ScheduleVerbs
from packhorse.client.submission import Submission
from packhorse.core.clock import to_datetime
from packhorse.core.topics import (
    SUBSCRIBER_KIND,
    SubscriberDeclaration,
    SubscriberDocument,
    check_topic,
    read_subscriber,
)
from packhorse.errors import ConfigError
from packhorse.handle import JobHandle
from packhorse.stores.plan import Asking
from packhorse.stores.records import all_records
from packhorse.task import Task, TaskDecorator

#: Options that make no sense for subscribers: they would be the same for every event.
_NOT_FOR_EVENTS: Final = (
    *("scheduled_at", "deadline", "job_id", "trace_id", "idempotency_key", "idempotency_window"),
    *("wait", "tx", "notify", "unique"),
)


class Topic:
    """A name under which events are published; `app.topic(name)` makes one."""

    def __init__(self, name: str, decorator: TaskDecorator, submission: Submission) -> None:
        self.name = check_topic(name)
        self._submission = submission
        #: `@topic.subscribe`, over a function or a task: gives it a job for every event.
        self.subscribe = decorator.taking(self._declare, adopt=self._take)
        self._decorator = decorator

    def publish(
        self, payload: object, *, tx: object = None, **options: Unpack[PublishOptions]
    ) -> list[JobHandle[Any]]:
        """Store a job for each subscriber, all or none; return their handles, or none.

        With `tx`, a connection of yours, they are stored when its transaction commits.
        """
        return publish(self._submission, self.name, payload, {**options, "tx": tx})

    async def apublish(
        self, payload: object, *, tx: object = None, **options: Unpack[PublishOptions]
    ) -> list[JobHandle[Any]]:
        """As `publish`, without blocking the event loop."""
        return await apublish(self._submission, self.name, payload, {**options, "tx": tx})

    def __repr__(self) -> str:
        return f"<Topic {self.name!r}>"

    def _declare(self, task: Task[..., Any]) -> None:
        self._decorator.take(task)
        self._take(task)

    def _take(self, task: Task[..., Any]) -> None:
        where = f"topic {self.name!r}: subscriber {task.name}"
        _refuse_keys(task, where)
        call: Call[Any] = Call(task.definition, b"{}", task.choices)
        for option in _NOT_FOR_EVENTS:
            if option in call.choices.values:
                raise ConfigError(
                    f"{where} has {option}=, which would be the same for every event; leave it out"
                )
        self._submission.subscribers.setdefault(self.name, {})[task.name] = call


def _refuse_keys(task: Task[..., Any], where: str) -> None:
    """Refuse a task whose keys come from arguments: a producer may not know its code."""
    given = task.definition
    keys = {"concurrency_key": given.concurrency_key, "rate_key": given.rate_key}
    taken = [name for name, value in {**keys, "unique": given.unique}.items() if value is not None]
    if given.bound is not None and given.bound.needs_key:
        taken.append("an idempotency key by contract")
    if taken:
        raise ConfigError(
            f"{where} takes {', '.join(taken)} from arguments, and publishers do not know its "
            "code; subscribe a task without, which submits this one"
        )


class SubscriberInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A task that gets the events of a topic."""

    task: str
    queue: str
    state: str  #: `active`; `silent`: workers of its queue do not declare it; `retired`
    declared_at: datetime
    seen_at: datetime  #: when a worker last said that it declares it
    retired_at: datetime | None = None


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A topic, and who gets its events."""

    name: str
    subscribers: tuple[SubscriberInfo, ...] = ()


class Topics:
    """The topics that a store knows subscribers of."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> list[TopicInfo]:
        """All of them, by name."""
        return self._connection.drive(self._all())

    async def aall(self) -> list[TopicInfo]:
        """As `all`, without blocking the event loop."""
        return await self._connection.adrive(self._all())

    def get(self, name: str) -> TopicInfo:
        """One of them; without subscribers if the store knows none."""
        return _one(self.all(), check_topic(name))

    async def aget(self, name: str) -> TopicInfo:
        """As `get`, without blocking the event loop."""
        return _one(await self.aall(), check_topic(name))

    def _all(self) -> Asking[list[TopicInfo]]:
        found: dict[str, list[SubscriberInfo]] = {}
        page = yield from all_records(self._connection.store.records, SUBSCRIBER_KIND)
        for record in page.records:
            subscriber = read_subscriber(record.document)
            found.setdefault(subscriber.topic, []).append(_info(subscriber))
        return [TopicInfo(name=name, subscribers=tuple(each)) for name, each in found.items()]


def _one(topics: list[TopicInfo], name: str) -> TopicInfo:
    return next((each for each in topics if each.name == name), TopicInfo(name=name))


def _info(subscriber: SubscriberDocument) -> SubscriberInfo:
    retired_us = subscriber.retired_us
    return SubscriberInfo(
        task=subscriber.task,
        queue=subscriber.job.queue,
        state=subscriber.state,
        declared_at=to_datetime(subscriber.declared_us),
        seen_at=to_datetime(subscriber.seen_us),
        retired_at=None if retired_us is None else to_datetime(retired_us),
    )


class TopicVerbs(ScheduleVerbs):
    """The verbs of an app that are about topics."""

    _submission: Submission

    def topic(self, name: str) -> Topic:
        """The topic of this name, to subscribe to and to publish events on."""
        return Topic(name, self.task, self._submission)

    @property
    def topics(self) -> Topics:
        """The topics that the store knows subscribers of."""
        return Topics(self._connection)

    def _declared_subscribers(self) -> tuple[SubscriberDeclaration, ...]:
        """The subscribers of this process, with the queues and tasks it knows now."""
        submission = self._submission
        return tuple(
            declaration(topic, call, submission)
            for topic, calls in submission.subscribers.items()
            for call in calls.values()
        )
