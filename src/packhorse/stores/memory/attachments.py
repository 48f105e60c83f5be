# SPDX-License-Identifier: MIT
"""Attachments in the reference store."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from packhorse.core.job import TERMINAL, JobOptions, JobStatus
from packhorse.core.policies.attachments import (
    SIGNALS_MAX,
    Attaching,
    Attachments,
    check_attaching,
    check_values,
    fits,
    too_much,
)
from packhorse.core.settlement import Verdict
from packhorse.stores.attachments import DeliverAnswer
from packhorse.stores.memory.rows import JobRow
from packhorse.stores.memory.state import Access, on_state, plan
from packhorse.stores.plan import Plan, about_job


class MemoryAttachments:
    """See `AttachmentStore`."""

    def attach(self, kept: Sequence[Attaching]) -> Plan[tuple[Verdict, ...]]:
        check_attaching(kept)
        return plan("attach", partial(_attach, tuple(kept)))

    @about_job(DeliverAnswer.UNKNOWN)
    def deliver(
        self, job_id: str, name: str, value: bytes, *, tenant: str | None = None, delivery: int = 0
    ) -> Plan[DeliverAnswer]:
        check_values({name: value})
        return plan("deliver", partial(_deliver, (job_id, tenant), name, value, delivery))

    @on_state(writes=False)
    def attachments(
        self, access: Access, job_id: str, *, tenant: str | None = None
    ) -> Attachments | None:
        row = access.visible(job_id, tenant)
        if row is None:
            return None
        return msgspec.structs.replace(row.attached, waiting=row.awaits_signal)


def _attach(kept: Sequence[Attaching], access: Access) -> tuple[Verdict, ...]:
    changed: dict[str, tuple[JobRow, Attachments]] = {}
    for one in kept:
        row = access.state.jobs.get(one.job_id)
        if row is None or row.status is not JobStatus.PROCESSING or row.fence != one.fence:
            continue
        values = {**row.attached.values, **one.values}
        attached = msgspec.structs.replace(row.attached, values=values)
        if not _fits(attached):
            raise too_much(one.job_id)
        changed[one.job_id] = row, attached
    for row, attached in changed.values():
        if attached.values:
            _keep(access, row, attached, row.updated_us)
    return tuple(Verdict.APPLIED if one.job_id in changed else Verdict.STALE for one in kept)


def _deliver(
    asked: tuple[str, str | None], name: str, value: bytes, delivery: int, access: Access
) -> DeliverAnswer:
    row = access.visible(*asked)
    if row is None:
        return DeliverAnswer.UNKNOWN
    if delivery in row.attached.deliveries:
        return DeliverAnswer.DELIVERED
    if row.status in TERMINAL:
        return DeliverAnswer.FINISHED
    signals = dict(row.attached.signals)
    signals[name] = (*signals.get(name, ()), value)
    known = sorted({*row.attached.deliveries, delivery} - {0})
    attached = msgspec.structs.replace(row.attached, signals=signals, deliveries=tuple(known))
    if len(signals[name]) > SIGNALS_MAX or not _fits(attached):
        return DeliverAnswer.FULL
    _keep(access, row, attached, access.now_us, due=row.awaits_signal)
    return DeliverAnswer.DELIVERED


def _fits(attached: Attachments) -> bool:
    everything = attached.everything
    return fits(len(everything), sum(map(len, everything)))


def _keep(
    access: Access, row: JobRow, attached: Attachments, updated_us: int, *, due: bool = False
) -> None:
    options = msgspec.structs.replace(row.new.options or JobOptions(), attached=True)
    with access.state.changing(row, updated_us):
        row.new = msgspec.structs.replace(row.new, options=options)
        row.attached = attached
        if due:
            row.due_us = access.now_us
    if due:
        access.wake_queue(row)
