# SPDX-License-Identifier: MIT
"""`ctx.flow`: the workflow of a handler's job, a part of its context."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packhorse.hosts import AttemptHost
    from packhorse.workflows.growth import FlowInRun


class FlowVerbs(ABC):
    """See `Context`."""

    __slots__ = ()

    @property
    @abstractmethod
    def host(self) -> AttemptHost:
        """Who runs this attempt."""

    @property
    def flow(self) -> FlowInRun:
        """The workflow that the job is a node of: `ctx.flow.add(call)`; else a `UsageError`."""
        found: FlowInRun = self.host.flow()
        return found
