# SPDX-License-Identifier: MIT
"""Attachments, on which steps and signals stand: what a store promises."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from packhorse.core.policies.attachments import Attaching, Attachments
from packhorse.core.settlement import Verdict
from packhorse.stores.plan import Plan


class DeliverAnswer(StrEnum):
    """What became of a signal."""

    DELIVERED = "delivered"
    FINISHED = "finished"  #: the job is over; nothing was kept
    FULL = "full"  #: the job has all it may have; nothing was kept
    UNKNOWN = "unknown"


class AttachmentStore(Protocol):
    """Values kept with a job under names, and signals sent to it from outside."""

    def attach(self, kept: Sequence[Attaching]) -> Plan[tuple[Verdict, ...]]:
        """Keep values with jobs, each while it is processing with its fence; else it is stale.

        A stale one keeps nothing, and the others are kept. A name that was there gets the new
        value; when the job was changed last stays as it was. What is beyond the bounds of
        `policies.attachments`, or names a job twice, is a `ConfigError` or a `PayloadError`, and
        nothing of all of it is kept. From then on claims give a job with `attached` in its options,
        also after a retry, a rescue and a redrive. What is attached goes when the job goes; a
        completed job that is redriven starts without it.
        """
        ...

    def deliver(
        self, job_id: str, name: str, value: bytes, *, tenant: str | None = None, delivery: int = 0
    ) -> Plan[DeliverAnswer]:
        """Append a signal to those of its name, whatever the job does.

        A job that waits for a signal is due at once; any other stays as it is. A settlement that
        waits, and has seen fewer signals than came (`Settlement.waits`), is queued instead; while
        it waits so it does not count as depth, nor is it shed. A
        finished job keeps nothing; nor does one that has 100 of this name, or as much as it may
        have. A job of another tenant is unknown. With `delivery`, a number of the sender's, the
        same one again keeps nothing more and is answered as delivered, also by a finished job.
        """
        ...

    def attachments(self, job_id: str, *, tenant: str | None = None) -> Plan[Attachments | None]:
        """All that is kept with a job; None as in `InspectionStore.job`. Reads only."""
        ...
