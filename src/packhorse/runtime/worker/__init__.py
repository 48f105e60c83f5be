# SPDX-License-Identifier: MIT
"""Claims jobs and runs them.

Read in this order: `attempt` (one claimed job), `executor` (call its handler), `slots` (from one
job to the next), `settler` (write its settlement), `fetcher` and `claim_policy` (claim more),
`heartbeat` (keep the lease), `stopping` (end attempts that take too long), `runtime` (parts that a
worker and a consumer share), `worker_runtime` and `worker` (assembly, start and shutdown).
"""

from __future__ import annotations

from packhorse.runtime.worker.environment import Environment
from packhorse.runtime.worker.tallies import EXIT_ABANDONED, EXIT_OK, WorkerReport
from packhorse.runtime.worker.worker import Worker

__all__ = ["EXIT_ABANDONED", "EXIT_OK", "Environment", "Worker", "WorkerReport"]
