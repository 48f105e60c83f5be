# SPDX-License-Identifier: MIT
"""Decide when a worker process is replaced by a new one.

Long-lived resources go stale, libraries leak, and after some errors it is unknown what state the
process is in. The worker that notices asks its supervisor to be replaced, and drains.
"""

from __future__ import annotations

import resource
import sys
from typing import Final

from packhorse.core.config import WorkerOptions
from packhorse.core.job import RetryRule
from packhorse.core.outcome import Failed, Outcome, Succeeded, TimedOut
from packhorse.core.text import counted
from packhorse.errors import ConfigError

_MIB: Final = 1024 * 1024
#: What `ru_maxrss` counts in: kibibytes, on macOS bytes.
_RSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024
#: Exceptions after which the state of a process is in doubt, whatever the task says of them.
_FATAL: Final = frozenset(
    f"builtins.{name}" for name in ("MemoryError", "SystemExit", "KeyboardInterrupt", "SystemError")
)
#: A policy that names these does not say which errors it expects.
_ANY: Final = frozenset({"builtins.Exception", "builtins.BaseException"})


class Recycling:
    """Counts what decides whether a worker process is replaced."""

    def __init__(self, options: WorkerOptions) -> None:
        self._jobs_max = options.recycle_jobs
        self._failures_max = options.recycle_failures
        self._mib_max = options.recycle_mib
        self._unexpected = options.recycle_on == "unexpected"
        self._failures = 0  # in a row
        self._alarm = ""

    def ended(self, outcome: Outcome, rule: RetryRule) -> None:
        """Count an ended attempt. Runs once per job: keep it short."""
        if type(outcome) is Succeeded:
            self._failures = 0
        elif isinstance(outcome, Failed | TimedOut):
            self._failures += 1
            self._alarm = self._alarm or alarm(outcome, rule if self._unexpected else None)

    def verdict(self, attempts: int) -> str | None:
        """Return why to replace the process after so many attempts, or None."""
        if self._alarm:
            return self._alarm
        if self._jobs_max is not None and attempts >= self._jobs_max:
            return f"it has run {counted(attempts, 'job')}"
        if self._failures_max is not None and self._failures >= self._failures_max:
            return f"{counted(self._failures, 'attempt')} in a row failed"
        return None

    def swollen(self, attempts: int) -> str | None:
        """Return why to replace the process for its memory, or None; asked every second.

        Not before it has begun a job: where the app alone is larger, no job would ever run.
        """
        if self._mib_max is None or not attempts:
            return None
        mib = memory_mib()
        return f"it has {mib:.0f} MiB in memory" if mib > self._mib_max else None


def refuse_unsupervised(options: WorkerOptions) -> None:
    """Raise if a process without a supervisor is told when to be replaced."""
    for name in ("recycle_jobs", "recycle_failures", "recycle_mib"):
        if getattr(options, name) is not None:
            raise ConfigError(
                f"worker: {name} has a process replaced, and this one has no supervisor; start it "
                f"with 'packhorse worker' and without --in-process, or leave {name} out"
            )


def alarm(outcome: Outcome, rule: RetryRule | None = None) -> str:
    """Return why to replace the process after this outcome, or an empty text.

    After a fatal exception; given the task's retry rule, after any that this does not name, in
    `retry_on` or `give_up_on`. To name `Exception`, as the default does, expects nothing.
    """
    if not isinstance(outcome, Failed) or not outcome.kinds:  # asked for a retry
        return ""
    fatal = not _FATAL.isdisjoint(outcome.kinds)
    if not fatal and rule is not None:
        named = {*rule.retry_on, *rule.give_up_on} - _ANY
        fatal = named.isdisjoint(outcome.kinds)
    return f"a handler ended with {outcome.error.type}" if fatal else ""


def memory_mib() -> float:
    """Return the memory of this process now, or, where that is unknown, its maximum so far."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - once per job
            return int(file.read().split()[1]) * resource.getpagesize() / _MIB
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT / _MIB
