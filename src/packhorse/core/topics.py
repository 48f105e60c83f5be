# SPDX-License-Identifier: MIT
"""A subscriber of a topic as the store holds it, and the jobs that an event becomes.

One event is one job for each subscriber. A subscriber is a record, so that a producer reaches it
without importing its code; the ids of the jobs follow from event and subscriber, so that an event
published twice gives nothing twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from packhorse.core.job import NewJob
from packhorse.core.keys import derived_id
from packhorse.core.policies.records import Put, Record, RecordId
from packhorse.core.releases import (
    RETIRED_AFTER_US,
    RETIRED_KEPT_US,
    SEEN_EVERY_US,
    Declared,
    Release,
    declared_again,
)
from packhorse.errors import ConfigError

SUBSCRIBER_KIND: Final = "subscriber"
#: Between the name of a topic and that of a task, neither of which has one.
_BETWEEN: Final = "/"
_TOPIC: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,199}")
#: Two turns without a word, and other workers of its queue begin to doubt it.
_SILENT_US: Final = 2 * SEEN_EVERY_US
_ARGUMENTS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class SubscriberDocument(Declared, frozen=True, omit_defaults=True):
    """A task that gets the events of a topic, as the store holds it."""

    topic: str
    job: NewJob  #: everything is decided but id, arguments and what a publish says
    declared_us: int  #: events published before are not for it
    names: tuple[str, ...] = ()  #: the parameters of the task
    required: tuple[str, ...] = ()  #: those without a default
    aliases: tuple[str, ...] = ()  #: what the task was called before
    doubted_us: int | None = None  #: since when workers of its queue have not heard of it

    @property
    def task(self) -> str:
        """The name of the task."""
        return self.job.task

    @property
    def state(self) -> str:
        """One word: `active`, `silent` or `retired`."""
        if self.retired_us is not None:
            return "retired"
        return "active" if self.doubted_us is None else "silent"


class SubscriberDeclaration(msgspec.Struct, frozen=True):
    """A subscriber as code declares it."""

    topic: str
    job: NewJob
    names: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    @property
    def id(self) -> RecordId:
        """The record that holds it."""
        return subscriber_id(self.topic, self.job.task)

    def put(
        self, record: Record | None, release: Release, now_us: int, *, holder_lives: bool
    ) -> Put | None:
        """How to write what this declaration makes of it; None: nothing has to be written."""
        before = None if record is None else read_subscriber(record.document)
        after = declared(before, self, release, now_us, holder_lives=holder_lives)
        return None if after is None else put_subscriber(after, record.version if record else 0)


class TopicEvent(msgspec.Struct, frozen=True):
    """Something that happened: what was published, and what its publisher chose."""

    topic: str
    id: str
    payload: bytes  #: JSON text
    fields: dict[str, Any]  #: of each job


def check_topic(name: object) -> str:
    """Refuse what cannot name a topic."""
    if isinstance(name, str) and _TOPIC.fullmatch(name) is not None:
        return name
    raise ConfigError(
        f"{name!r} cannot name a topic; give letters, digits and any of _ . : -, such as "
        "'order.paid', at most 200 and not beginning with a digit"
    )


# ------------------------------------------------------------------------------------- as a record


def subscriber_id(topic: str, task: str) -> RecordId:
    """The record of a subscriber."""
    return RecordId(SUBSCRIBER_KIND, "", f"{topic}{_BETWEEN}{task}")


def subscribers_after(topic: str) -> str:
    """The place in the list of records behind which the subscribers of a topic stand."""
    return subscriber_id(topic, "").text


#: A subscriber from the document of its record.
read_subscriber: Final = msgspec.json.Decoder(SubscriberDocument).decode


def put_subscriber(subscriber: SubscriberDocument, version: int) -> Put:
    """How to write a subscriber whose record has this version."""
    return Put(
        *(subscriber_id(subscriber.topic, subscriber.task), msgspec.json.encode(subscriber)),
        expected=version,
        keep_us=None if subscriber.retired_us is None else RETIRED_KEPT_US,
    )


# ---------------------------------------------------------------------------- declaring, retiring


def declared(
    before: SubscriberDocument | None,
    new: SubscriberDeclaration,
    release: Release,
    now_us: int,
    *,
    holder_lives: bool = True,
) -> SubscriberDocument | None:
    """What a worker's declaration makes of a subscriber; None: nothing that had to be written."""
    if before is None:
        return SubscriberDocument(
            *(new.topic, new.job, now_us, new.names, new.required, new.aliases),
            seen_us=now_us,
            release=release,
        )
    said = msgspec.structs.replace(
        before, job=new.job, names=new.names, required=new.required, aliases=new.aliases
    )
    after = declared_again(before, said, release, now_us, holder_lives=holder_lives)
    return None if after is None else msgspec.structs.replace(after, doubted_us=None)


def doubted(subscriber: SubscriberDocument, now_us: int) -> SubscriberDocument | None:
    """What a worker that serves its queue and does not declare it makes of it; None: nothing.

    While no such worker runs it stays: its jobs wait, as those of any task do. So an outage of
    all workers loses no event, however long it is.
    """
    if subscriber.retired_us is not None or now_us - subscriber.seen_us < _SILENT_US:
        return None
    if subscriber.doubted_us is None:
        return msgspec.structs.replace(subscriber, doubted_us=now_us)
    if now_us - subscriber.doubted_us < RETIRED_AFTER_US:
        return None
    return msgspec.structs.replace(subscriber, retired_us=now_us)


# ------------------------------------------------------------------------------------- publishing


def reached(
    stored: Iterable[SubscriberDocument], own: Iterable[SubscriberDeclaration]
) -> tuple[SubscriberDocument | SubscriberDeclaration, ...]:
    """Those an event reaches: the stored ones, and of a process's `own` those not stored yet.

    One that another has taken the place of, by naming it among its aliases, is left out.
    """
    known = {each.task: each for each in stored}
    living: dict[str, SubscriberDocument | SubscriberDeclaration] = {
        task: each for task, each in known.items() if each.retired_us is None
    }
    living.update({each.job.task: each for each in own if each.job.task not in known})
    replaced = {alias for each in living.values() for alias in each.aliases}
    return tuple(each for task, each in sorted(living.items()) if task not in replaced)


def event_jobs(
    event: TopicEvent, subscribers: Iterable[SubscriberDocument | SubscriberDeclaration]
) -> list[NewJob]:
    """The job of each subscriber; what a publish says wins over what a subscriber says."""
    try:
        arguments = _ARGUMENTS.decode(event.payload)
    except msgspec.ValidationError:
        arguments = None
    tenant = event.fields.get("tenant", "")
    trace_id = event.fields.get("trace_id", event.id.replace("-", ""))
    return [
        msgspec.structs.replace(
            each.job,
            **event.fields,
            id=derived_id("topic", tenant, event.topic, event.id, each.job.task),
            payload=_payload(event.payload, arguments, each.names, each.required),
            trace_id=trace_id,
        )
        for each in subscribers
    ]


def _payload(
    payload: bytes,
    arguments: Mapping[str, msgspec.Raw] | None,
    names: tuple[str, ...],
    required: tuple[str, ...],
) -> bytes:
    """The arguments of a subscriber's task: by name if the event has them, else the event itself.

    A task that can take neither gets a job all the same, which ends among its dead letters: the
    event is not refused to the others for it.
    """
    if not names:
        return b"{}"
    if arguments is not None:
        chosen = {name: arguments[name] for name in names if name in arguments}
        if chosen and chosen.keys() >= set(required):
            return msgspec.json.encode(chosen)
    main = required or names
    return msgspec.json.encode({main[0] if len(main) == 1 else "payload": msgspec.Raw(payload)})
