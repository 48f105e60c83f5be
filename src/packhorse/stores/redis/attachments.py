# SPDX-License-Identifier: MIT
"""Values and signals attached to jobs, in fields of their hashes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec

from packhorse.core.job import JobOptions, JobStatus
from packhorse.core.policies.attachments import (
    ATTACHED_BYTES_MAX,
    ATTACHED_MAX,
    SIGNALS_MAX,
    Attaching,
    Attachments,
    check_attaching,
    check_values,
    too_much,
)
from packhorse.core.settlement import Verdict
from packhorse.stores.attachments import DeliverAnswer
from packhorse.stores.plan import Named, Plan, Steps
from packhorse.stores.redis.jobs import seen_by
from packhorse.stores.redis.layout import FIELDS, STATUS
from packhorse.stores.redis.rows import read_definition, read_options, read_state
from packhorse.stores.redis.scripts import Argument, Script

_pack: Final = msgspec.msgpack.Encoder().encode
_VALUE, _SIGNAL, _SIGNALS, _DELIVERY = (
    FIELDS[name] for name in ("value", "signal", "signals", "delivery")
)
_ATTACHED, _BYTES, _DELIVERED, _WAITS, _COUNTED = (
    FIELDS[name] for name in ("attached", "attached_bytes", "delivered", "waits", "counted")
)


class RedisAttachments:
    """See `AttachmentStore`."""

    def attach(self, kept: Sequence[Attaching]) -> Plan[tuple[Verdict, ...]]:
        check_attaching(kept)
        return Plan("attach", partial(_attach, kept))

    def deliver(
        self, job_id: str, name: str, value: bytes, *, tenant: str | None = None, delivery: int = 0
    ) -> Plan[DeliverAnswer]:
        check_values({name: value})
        asked = (job_id, *seen_by(tenant))
        named = Named(
            job_id,
            DeliverAnswer.UNKNOWN,
            lambda other: self.deliver(other, name, value, tenant=tenant, delivery=delivery),
        )
        signal: Sequence[Argument] = (name, value, delivery or "")
        return Plan("deliver", partial(_deliver, asked, signal), named=named)

    def attachments(self, job_id: str, *, tenant: str | None = None) -> Plan[Attachments | None]:
        def steps() -> Steps[Attachments | None]:
            flat = yield Script("attachments", (job_id, *seen_by(tenant)))
            return None if flat is None else read_attached(flat)

        return Plan("attachments", steps, writes=False)


def _attach(kept: Sequence[Attaching]) -> Steps[tuple[Verdict, ...]]:
    """Attach values; a job's first ones need its definition marked, which takes a second script.

    Nothing else changes a definition, so nothing is lost between the two scripts.
    """
    marks = dict.fromkeys([one.job_id for one in kept], b"")
    while True:  # once or twice: the script asks for each mark once
        args: list[Argument] = [ATTACHED_MAX, ATTACHED_BYTES_MAX]
        for one in kept:
            args += (one.job_id, one.fence, marks[one.job_id], len(one.values))
            args += [part for pair in one.values.items() for part in pair]
        word, *rest = yield Script("attach", args)
        if word == b"full":
            raise too_much(rest[0].decode())
        if word == b"kept":
            return tuple(Verdict.STALE if each == b"0" else Verdict.APPLIED for each in rest)
        for job_id, definition in zip(rest[::2], rest[1::2], strict=True):
            marks[job_id.decode()] = _mark(definition)


def _deliver(asked: Sequence[Argument], signal: Sequence[Argument]) -> Steps[DeliverAnswer]:
    args = [*asked, ATTACHED_MAX, ATTACHED_BYTES_MAX, SIGNALS_MAX]
    word, *rest = yield Script("deliver", [*args, "", *signal])
    if word == b"mark":  # as above
        word, *_ = yield Script("deliver", [*args, _mark(rest[0]), *signal])
    return DeliverAnswer(word.decode())


def _mark(definition: bytes) -> bytes:
    known = read_definition(definition)
    options = JobOptions() if known.options is None else read_options(known.options)
    marked = msgspec.json.encode(msgspec.structs.replace(options, attached=True)).decode()
    return _pack(msgspec.structs.replace(known, options=marked))


def read_attached(flat: Sequence[Any]) -> Attachments:
    """Read what is attached to a job from the fields of its hash."""
    fields: dict[bytes, bytes] = dict(zip(flat[::2], flat[1::2], strict=True))
    values: dict[str, bytes] = {}
    signals: dict[str, dict[int, bytes]] = {}
    deliveries: list[int] = []
    for name, value in fields.items():
        kind, rest = chr(name[0]), name[1:].decode(errors="replace")
        if kind == _VALUE:
            values[rest] = value
        elif kind == _SIGNAL:
            number, _, signal = rest.partition(":")
            signals.setdefault(signal, {})[int(number)] = value
        elif kind == _DELIVERY:
            deliveries.append(int(rest))
    state = read_state(fields[FIELDS["state"].encode()])
    waits = int(fields.get(_WAITS.encode(), b"-1"))
    waiting = STATUS[state.status] is JobStatus.PENDING and waits == state.fence
    ordered = {name: tuple(each[at] for at in sorted(each)) for name, each in signals.items()}
    items, failed = map(int, fields.get(_COUNTED.encode(), b"0 0").split())
    return Attachments(values, ordered, waiting, (items, failed), tuple(sorted(deliveries)))


def attached_fields(attached: Attachments, fence: int) -> list[Argument]:
    """The fields of what is attached, as name and value; none for most jobs."""
    everything = [
        *attached.values.values(),
        *(each for s in attached.signals.values() for each in s),
    ]
    fields: list[Argument] = [_WAITS, fence] if attached.waiting else []
    if any(attached.counted):
        fields += (_COUNTED, "{} {}".format(*attached.counted))
    if not everything:
        return fields
    fields += (_ATTACHED, len(everything), _BYTES, sum(map(len, everything)))
    fields += (_DELIVERED, attached.delivered)
    for delivery in attached.deliveries:
        fields += (f"{_DELIVERY}{delivery}", 1)
    for name, value in attached.values.items():
        fields += (f"{_VALUE}{name}", value)
    for name, signals in attached.signals.items():
        fields += (f"{_SIGNALS}{name}", len(signals))
        for number, value in enumerate(signals, 1):
            fields += (f"{_SIGNAL}{number}:{name}", value)
    return fields
