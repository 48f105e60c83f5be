# SPDX-License-Identifier: MIT
"""When a process has done enough, and another one is to take its place.

Long-lived resources go stale, libraries leak, and after some errors nobody knows what state the
process is in. The worker that notices asks its supervisor to be replaced, and drains.
"""

from __future__ import annotations

import resource
import sys
from typing import Final

from packhorse.config import WorkerOptions
from packhorse.errors import ConfigError
from packhorse.outcome import Failed, Outcome, Succeeded, TimedOut

__all__ = ["Wear", "is_alarming", "memory_mib", "refuse_unsupervised"]

_MIB: Final = 1024 * 1024
#: What `ru_maxrss` counts in: kibibytes, on macOS bytes.
_RSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024
#: Kinds of failures after which nobody knows what state the process is in.
_ALARMING: Final = frozenset(
    f"builtins.{name}" for name in ("MemoryError", "SystemExit", "KeyboardInterrupt", "SystemError")
)


class Wear:
    """What one worker process has been through."""

    def __init__(self, options: WorkerOptions) -> None:
        self._jobs_max = options.recycle_jobs
        self._failures_max = options.recycle_failures
        self._mib_max = options.recycle_mib
        self._failures = 0  # in a row
        self._alarm = ""

    def ended(self, outcome: Outcome) -> None:
        """An attempt came to this; called for every one, so it is kept short."""
        if type(outcome) is Succeeded:
            self._failures = 0
        elif isinstance(outcome, Failed | TimedOut):
            self._failures += 1
            if is_alarming(outcome):
                self._alarm = outcome.error.type

    def verdict(self, attempts: int) -> str | None:
        """Why the process is to be replaced after so many attempts; None if it is not."""
        if self._alarm:
            return f"a handler ended with {self._alarm}"
        if self._jobs_max is not None and attempts >= self._jobs_max:
            return f"it has run {attempts} jobs"
        if self._failures_max is not None and self._failures >= self._failures_max:
            return f"{self._failures} attempts in a row have failed"
        return None

    def swollen(self, attempts: int) -> str | None:
        """Why it is to be replaced for the memory it has; asked every second.

        Not before it has begun a job: where the app alone is larger, no job would ever run.
        """
        if self._mib_max is None or not attempts:
            return None
        mib = memory_mib()
        return f"it has {mib:.0f} MiB in memory" if mib > self._mib_max else None


def refuse_unsupervised(options: WorkerOptions) -> None:
    """Raise if a process that nobody would replace is told when to be replaced."""
    for name in ("recycle_jobs", "recycle_failures", "recycle_mib"):
        if getattr(options, name) is not None:
            raise ConfigError(
                f"worker: {name} has a process replaced, and nobody watches this one; start it "
                f"with 'packhorse worker' and without --in-process, or leave {name} out"
            )


def is_alarming(outcome: Outcome) -> bool:
    """Whether nobody knows what state the process is in after this."""
    return isinstance(outcome, Failed) and not _ALARMING.isdisjoint(outcome.kinds)


def memory_mib() -> float:
    """What this process has in memory now, or, where that cannot be told, the most it ever had."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - once per job
            return int(file.read().split()[1]) * resource.getpagesize() / _MIB
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT / _MIB
