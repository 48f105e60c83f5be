# SPDX-License-Identifier: MIT
"""Attachments, on which steps and signals stand: what a store promises."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

from packhorse.core.policies.attachments import Attachments
from packhorse.core.settlement import Verdict
from packhorse.stores.plan import Plan

__all__ = ["AttachmentStore", "DeliverAnswer"]


class DeliverAnswer(StrEnum):
    """What became of a signal."""

    DELIVERED = "delivered"
    FINISHED = "finished"  #: the job is over; nothing was kept
    FULL = "full"  #: the job has all it may have; nothing was kept
    UNKNOWN = "unknown"


class AttachmentStore(Protocol):
    """Values kept with a job under names, and signals sent to it from outside."""

    def attach(self, job_id: str, fence: int, values: Mapping[str, bytes]) -> Plan[Verdict]:
        """Keep values with a job while it is processing with this fence; else it is stale.

        A name that was there gets the new value. All are kept or none: what is beyond the bounds
        of `policies.attachments` is a `ConfigError` or a `PayloadError`. From then on claims give
        the job with `attached` in its options, also after a retry, a rescue and a redrive. What is
        attached goes when the job goes; a completed job that is redriven starts without it.
        """
        ...

    def deliver(
        self, job_id: str, name: str, value: bytes, *, tenant: str | None = None
    ) -> Plan[DeliverAnswer]:
        """Append a signal to those of its name, whatever the job does.

        A job that waits for a signal is due at once; any other stays as it is. A settlement that
        waits, and has seen fewer signals than came (`Settlement.waits`), is queued instead. A
        finished job keeps nothing; nor does one that has 100 of this name, or as much as it may
        have. A job of another tenant is unknown.
        """
        ...

    def attachments(self, job_id: str, *, tenant: str | None = None) -> Plan[Attachments | None]:
        """All that is kept with a job; None as in `InspectionStore.job`. Reads only."""
        ...
