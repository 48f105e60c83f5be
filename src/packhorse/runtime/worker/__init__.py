# SPDX-License-Identifier: MIT
"""Claims jobs and runs them.

Read in this order: `attempt` (one claimed job), `executor` (call its handler), `slots` (from one
job to the next), `settler` (write what became of it), `fetcher` and `claim_policy` (claim more),
`heartbeat` (keep the lease), `stopping` (end what goes on too long), `runtime` (what a worker and a
consumer share), `worker_runtime` and `worker` (put together, up and down).
"""

from __future__ import annotations

from packhorse.runtime.worker.environment import Environment
from packhorse.runtime.worker.telemetry import EXIT_ABANDONED, EXIT_OK, WorkerReport
from packhorse.runtime.worker.worker import Worker

__all__ = ["EXIT_ABANDONED", "EXIT_OK", "Environment", "Worker", "WorkerReport"]
