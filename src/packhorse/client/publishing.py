# SPDX-License-Identifier: MIT
"""Publish an event: find the subscribers of its topic, and store a job for each, all or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypedDict

from packhorse.call import NO_CHOICES, Call
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
from packhorse.core.driving import adrive, drive
from packhorse.core.durations import Duration
from packhorse.core.job import Priority
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
from packhorse.stores.records import RecordPage

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


def publish(
    submission: Submission,
    topic: str,
    payload: object,
    options: Mapping[str, Any],
    *,
    tenant: str | None = None,
) -> list[JobHandle[Any]]:
    """Store one job for each subscriber; return their handles, by the names of their tasks.

    With `tenant` the jobs belong to that tenant, and the handles see only its jobs.
    """
    publication = _Publication(submission, topic, payload, options, tenant)
    store = submission.connection.store
    batch = publication.batch(drive(_stored(store, topic), store.run))
    return submission.store(batch, "publish", tenant=tenant)


async def apublish(
    submission: Submission,
    topic: str,
    payload: object,
    options: Mapping[str, Any],
    *,
    tenant: str | None = None,
) -> list[JobHandle[Any]]:
    """As `publish`, without blocking the event loop."""
    publication = _Publication(submission, topic, payload, options, tenant)
    store = await submission.connection.astore()
    batch = publication.batch(await adrive(_stored(store, topic), store.arun))
    return await submission.astore(batch, tenant=tenant)


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


class _Publication:
    """One event, and how it is stored."""

    def __init__(
        self,
        submission: Submission,
        topic: str,
        payload: object,
        options: Mapping[str, Any],
        tenant: str | None,
    ) -> None:
        where = f"topic {check_topic(topic)!r}: publish()"
        given = {name: value for name, value in options.items() if name != "tx"}
        if tenant is not None and given.setdefault("tenant", tenant) != tenant:
            raise ConfigError(
                f"{where} is for tenant {given['tenant']!r} and was asked of the view of tenant "
                f"{tenant!r}; publish through its own, or leave its tenant out"
            )
        chosen = chosen_options(given, PublishOptions, where)
        choices = NO_CHOICES.using({**chosen, "tx": options.get("tx")}, where)
        fields = choices.fields()
        key = fields.pop("idempotency_key", None)
        wait_us, tx = fields.pop("wait_us", None), fields.pop("tx", None)
        notify = bool(fields.pop("notify", False))
        self._wait_us = wait_us
        self._within = None if tx is None else Within(tx, notify)
        self._keyed = key is not None  # its ids follow from the key, and may be there already
        self._event = TopicEvent(topic, key or new_id(), _encoded(payload), fields)
        self._submission = submission

    def batch(self, stored: Sequence[SubscriberDocument]) -> PreparedJobs:
        """Build and check a job for each subscriber."""
        submission, event = self._submission, self._event
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
        return PreparedJobs(jobs, self._wait_us, not self._keyed, self._within)


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
