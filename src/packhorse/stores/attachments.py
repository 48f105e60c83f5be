# SPDX-License-Identifier: MIT
"""The store contract of attachments, which steps and signals are built on."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from packhorse.core.policies.attachments import Attaching, Attachments
from packhorse.core.settlement import Verdict
from packhorse.stores.plan import Plan


class DeliverAnswer(StrEnum):
    """The result of sending a signal."""

    DELIVERED = "delivered"
    FINISHED = "finished"  #: the job has finished; nothing was kept
    FULL = "full"  #: the job has reached its limit; nothing was kept
    UNKNOWN = "unknown"


class AttachmentStore(Protocol):
    """Named values kept with a job, and signals sent to it from outside."""

    def attach(self, kept: Sequence[Attaching]) -> Plan[tuple[Verdict, ...]]:
        """Attach values to each job that is processing with its fence; others are stale.

        Nothing is kept for a stale job, and the others are kept. A known name gets the new
        value; `updated_us` of the job stays. Values beyond the bounds of `policies.attachments`,
        or a job named twice, are a `ConfigError` or a `PayloadError`, and nothing is kept. Claims
        then return the job with `attached` in its options, also after a retry, a rescue and a
        redrive. Attachments are removed with the job; a completed job that is redriven starts
        without them.
        """

    def deliver(
        self, job_id: str, name: str, value: bytes, *, tenant: str | None = None, delivery: int = 0
    ) -> Plan[DeliverAnswer]:
        """Append a signal to those of its name, whatever the status of the job.

        A job that waits for a signal becomes due at once; any other stays as it is. If a settlement
        leaves a job waiting that has seen fewer signals than came (`Settlement.waits`), the job is
        queued instead. A job that waits for a signal does not count as depth, and is not shed. A
        finished job keeps nothing; nor does one that has 100 of this name, or has reached its
        limit. A job of another tenant is unknown. With `delivery`, a number that the sender
        chooses, a repeated one keeps nothing and is answered as delivered, also if the job has
        finished.
        """

    def attachments(self, job_id: str, *, tenant: str | None = None) -> Plan[Attachments | None]:
        """Return all attachments of a job; None as in `InspectionStore.job`. Reads only."""
