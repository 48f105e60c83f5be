# SPDX-License-Identifier: MIT
"""What happens inside of a hosted flow, told like all else."""

from __future__ import annotations

from packhorse.events.kinds import Event


class FlowEvent(Event, frozen=True, kw_only=True):
    """A node of a flow began or ended well, or whatever else its runtime tells."""

    name = "flow.event"
    event: str  #: in the runtime's own word: `node_start`, `node_success`, ...
    node: str
    attempt: int = 0  #: of the node, from 0
    latency_ms: float | None = None
    queue_depth: int = 0  #: messages before and behind the node
    job_id: str = ""
    trace_id: str = ""
    tenant: str = ""
    task: str = ""
    queue: str = ""


class FlowTrouble(FlowEvent, frozen=True, kw_only=True):
    """A node failed, timed out, was tried again, was skipped, or a trace was cancelled."""

    name = "flow.trouble"
    error_code: str = ""
    error_type: str = ""


class FlowRebuilt(Event, frozen=True, kw_only=True):
    """A long-lived flow gave way to a new one."""

    name = "flow.rebuilt"
    reason: str
    jobs: int  #: that the old one had
    failures: int
    stopped: bool = True  #: False: it would not stop, and was left behind
