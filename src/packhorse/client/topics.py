# SPDX-License-Identifier: MIT
"""Topics of an app: each event becomes one job for every task that has subscribed.

    paid = app.topic("order.paid")
    @paid.subscribe                        a function, or a task; options as of app.task
    paid.publish({"order": 17})            and apublish; tx=connection, idempotency_key="o-17"
    app.topics.all()                       who has subscribed; every verb has an a-twin

To publish is to find the subscribers of a topic, and to store a job for each, all or none. Workers
write down who has subscribed (`runtime.services.subscribers`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypedDict, Unpack

import msgspec

from packhorse.call import NO_CHOICES, Call
from packhorse.client.store_access import Asks, Connection
from packhorse.client.submission import (
    ATOMIC_BYTES_MAX,
    ATOMIC_JOBS_MAX,
    PreparedJobs,
    Submission,
    new_job,
)
from packhorse.client.transactions import Within
from packhorse.core.clock import new_id
from packhorse.core.codec import Signature
from packhorse.core.durations import Duration
from packhorse.core.generators import adrive, awaited, blocking, drive
from packhorse.core.job import NewJob, Priority
from packhorse.core.job_info import shown
from packhorse.core.options import PriorityName, chosen_options
from packhorse.core.topics import (
    SUBSCRIBER_KIND,
    SubscriberDeclaration,
    SubscriberDocument,
    TopicEvent,
    check_topic,
    event_jobs,
    reached,
    read_subscriber,
    subscribers_after,
)
from packhorse.core.type_hints import Hints, Parameter
from packhorse.errors import ConfigError, UsageError
from packhorse.handle import JobHandle
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store
from packhorse.stores.records import RecordPage, all_records
from packhorse.task import Task, TaskDecorator

#: Subscribers read at once.
_PAGE: Final = 500


class PublishOptions(TypedDict, total=False):
    """What `topic.publish(payload, ...)` takes; it holds for the job of every subscriber."""

    #: A second publish of one key to a topic gives nothing twice, while the first one's jobs are
    #: kept.
    idempotency_key: str | None
    tenant: str | None
    priority: PriorityName | Priority | None
    delay: Duration | None
    scheduled_at: datetime | None
    deadline: datetime | None
    tags: Sequence[str] | None
    ordering_key: str | None
    trace_id: str | None
    upstream_request_id: str | None
    created_by: str | None
    wait: Duration | None
    notify: bool | None


def declaration(topic: str, call: Call[Any], submission: Submission) -> SubscriberDeclaration:
    """Return a subscriber as it is declared, with the queues and tasks known now."""
    task = call.definition
    signature = task.signature
    return SubscriberDeclaration(
        topic,
        new_job(call, submission.connection.declarations, ""),
        signature.names,
        tuple(name for name in signature.names if name not in signature.optional),
        task.aliases,
    )


def _stored(store: Store, topic: str) -> Asking[list[SubscriberDocument]]:
    """Read the subscribers of a topic from the store: one page, unless there are very many."""
    found: list[SubscriberDocument] = []
    after: str | None = subscribers_after(topic)
    begins = subscribers_after(topic)
    while after is not None:
        page: RecordPage = yield store.records.records(SUBSCRIBER_KIND, after=after, limit=_PAGE)
        own = [each for each in page.records if each.id.text.startswith(begins)]
        found += [read_subscriber(each.document) for each in own]
        after = page.after if len(own) == len(page.records) else None
    return found


_PAYLOAD: Final = Parameter("payload", Any, required=True, by_position=True, by_name=True)
_EVENT: Final = Signature.from_hints(
    Hints("publish()", (_PAYLOAD,), Any), skip_first=False, whole=True
)


def _encoded(payload: object) -> bytes:
    """Encode an event as JSON text; an error names what cannot be encoded."""
    if isinstance(payload, Call):
        raise ConfigError(f"{payload!r} is a call, which is submitted; publish data")
    return _EVENT.encode((payload,), {})


class Publisher:
    """Publishes events of a topic; with `tenant` as jobs of that tenant, seen by it alone."""

    def __init__(self, name: str, submission: Submission, tenant: str | None = None) -> None:
        self.name = check_topic(name)
        self._submission = submission
        self._tenant = tenant

    def publish(
        self, payload: object, *, tx: object = None, **options: Unpack[PublishOptions]
    ) -> list[JobHandle[Any]]:
        """Store a job for each subscriber, all or none; return their handles, or none.

        With `tx`, a connection of yours, they are stored when its transaction commits.
        """
        event, batch = self._event(payload, options, tx)
        store = self._submission.connection.store
        jobs = self._jobs(event, drive(_stored(store, self.name), store.run))
        return self._submission.store(batch._replace(jobs=jobs), "publish", tenant=self._tenant)

    async def apublish(
        self, payload: object, *, tx: object = None, **options: Unpack[PublishOptions]
    ) -> list[JobHandle[Any]]:
        """As `publish`, without blocking the event loop."""
        event, batch = self._event(payload, options, tx)
        store = await self._submission.connection.astore()
        jobs = self._jobs(event, await adrive(_stored(store, self.name), store.arun))
        return await self._submission.astore(batch._replace(jobs=jobs), tenant=self._tenant)

    def _event(
        self, payload: object, options: Mapping[str, Any], tx: object
    ) -> tuple[TopicEvent, PreparedJobs]:
        """Return an event, and how its jobs are to be stored."""
        where, given, tenant = f"topic {self.name!r}: publish()", dict(options), self._tenant
        if tenant is not None and given.setdefault("tenant", tenant) != tenant:
            raise ConfigError(
                f"{where} is for tenant {given['tenant']!r} and was asked of the view of tenant "
                f"{tenant!r}; publish through its own, or leave its tenant out"
            )
        chosen = chosen_options(given, PublishOptions, where)
        fields = NO_CHOICES.using({**chosen, "tx": tx}, where).fields()
        key, tx = fields.pop("idempotency_key", None), fields.pop("tx", None)
        notify, wait_us = bool(fields.pop("notify", False)), fields.pop("wait_us", None)
        within = None if tx is None else Within(tx, notify)
        # Ids follow from a key, and may be there already.
        event = TopicEvent(self.name, key or new_id(), _encoded(payload), fields)
        return event, PreparedJobs([], wait_us, key is None, within)

    def _jobs(self, event: TopicEvent, stored: Sequence[SubscriberDocument]) -> list[NewJob]:
        """Build and check a job for each subscriber."""
        submission = self._submission
        own = [
            declaration(event.topic, call, submission)
            for call in submission.subscribers.get(event.topic, {}).values()
        ]
        jobs = submission.checked(event_jobs(event, reached(stored, own)))
        size = sum(len(job.payload) for job in jobs)
        if len(jobs) > ATOMIC_JOBS_MAX or size > ATOMIC_BYTES_MAX:
            raise UsageError(
                f"an event of topic {event.topic!r} is for {len(jobs)} subscribers, with {size} "
                f"bytes of arguments, and one transaction takes at most {ATOMIC_JOBS_MAX} and "
                f"{ATOMIC_BYTES_MAX}; nothing was stored: publish a reference instead of the data"
            )
        return jobs


#: Options that make no sense for subscribers: they would be the same for every event.
_NOT_FOR_EVENTS: Final = (
    *("scheduled_at", "deadline", "job_id", "trace_id", "idempotency_key", "idempotency_window"),
    *("wait", "tx", "notify", "unique"),
)


class Topic(Publisher):
    """A name under which events are published; `app.topic(name)` makes one."""

    def __init__(self, name: str, decorator: TaskDecorator, submission: Submission) -> None:
        super().__init__(name, submission)
        #: `@topic.subscribe`, over a function or a task: gives it a job for every event.
        self.subscribe = decorator.taking(self._declare, adopt=self._take)
        self._decorator = decorator

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


class Topics(Asks):
    """The topics that a store knows subscribers of."""

    @blocking
    def all(self) -> Asking[list[TopicInfo]]:
        """All of them, by name."""
        return self._all()

    aall = awaited(all)  # noqa: A003 - the verb above

    @blocking
    def get(self, name: str) -> Asking[TopicInfo]:
        """One of them; without subscribers if the store knows none."""
        topics, wanted = (yield from self._all()), check_topic(name)
        return next((each for each in topics if each.name == wanted), TopicInfo(name=wanted))

    aget = awaited(get)

    def _all(self) -> Asking[list[TopicInfo]]:
        found: dict[str, list[SubscriberInfo]] = {}
        page = yield from all_records(self._connection.store.records, SUBSCRIBER_KIND)
        for record in page.records:
            subscriber = read_subscriber(record.document)
            found.setdefault(subscriber.topic, []).append(_info(subscriber))
        return [TopicInfo(name=name, subscribers=tuple(each)) for name, each in found.items()]


def _info(subscriber: SubscriberDocument) -> SubscriberInfo:
    return shown(SubscriberInfo, subscriber, queue=subscriber.job.queue)


class TopicVerbs:
    """The verbs of an app that are about topics."""

    task: TaskDecorator
    _connection: Connection
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
