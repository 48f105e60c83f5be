# SPDX-License-Identifier: MIT
"""What claims jobs and runs them.

Read in this order: `attempt` (one job in hand), `executor` (call it, say what it came to), `slots`
(from one job to the next), `settler` (write what became of it), `fetcher` (get more), `reach` (from
which queues, and how many), `settings` (what these are set to), `heartbeat` (stay alive), `endings`
(stop what would go on), `crew` (who tells whom), `worker` (up and down).
"""

from __future__ import annotations

from packhorse.worker.parts import WorkerParts
from packhorse.worker.tally import EXIT_ABANDONED, EXIT_OK, WorkerReport
from packhorse.worker.worker import Worker

__all__ = ["EXIT_ABANDONED", "EXIT_OK", "Worker", "WorkerParts", "WorkerReport"]
