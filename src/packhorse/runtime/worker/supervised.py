# SPDX-License-Identifier: MIT
"""The worker's side of its supervisor: shared memory, reports, and the request to be replaced."""

from __future__ import annotations

import contextlib
import os
import socket
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from packhorse.client.registry import Registry
from packhorse.core.clock import SECOND_US
from packhorse.core.outcome import Outcome
from packhorse.core.text import counted
from packhorse.runtime.supervisor.link import SupervisorLink
from packhorse.runtime.supervisor.messages import Hello, Left, Report, Retire, Stuck, TaskRules
from packhorse.runtime.worker.attempt import Attempt, Stage
from packhorse.runtime.worker.recycling import Recycling
from packhorse.runtime.worker.shutdown import Phase
from packhorse.runtime.worker.stacks import stack_of_task, stack_of_thread

if TYPE_CHECKING:
    from packhorse.runtime.worker.worker_runtime import WorkerRuntime

#: Attempts whose durations are looked at for the 95th percentile.
_DURATIONS: Final = 1_024
#: A report goes when something has changed, and after so long anyway.
_SILENCE_S: Final = 10.0
#: Stuck handlers in one report; more of them look the same.
_STUCK_MAX: Final = 20


class SupervisorReporter:
    """Note each attempt in the memory shared with the supervisor, and report over its pipe."""

    def __init__(self, link: SupervisorLink, runtime: WorkerRuntime) -> None:
        self.memory = link.memory
        self._link = link
        self._runtime = runtime
        self._recycling = Recycling(runtime.options)
        self._durations: deque[float] = deque(maxlen=_DURATIONS)
        self._tallies = runtime.settler.tallies
        self._last: Report | None = None
        self._sent_at = float("-inf")
        self._retired = False
        self._blocked = ""  # the stack that blocks the event loop, while one does

    def greet(self) -> None:
        """Introduce this worker to its supervisor before the first claim, and obey it."""
        runtime, link = self._runtime, self._link
        hello = hello_of(runtime)
        link.send(msgspec.structs.replace(hello, url=link.url, app=link.app))
        link.on_quiet(self._told_quiet)

    def _told_quiet(self, on: bool) -> None:  # noqa: FBT001 - called from the link's own thread
        runtime = self._runtime
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing to stop
            runtime.loop.call_soon_threadsafe(lambda: runtime.set_quiet(on=on))

    # ------------------------------------------------------------------------- once per attempt

    def begin(self, attempt: Attempt) -> None:
        """Note that its handler begins."""
        job = attempt.job
        attempt.place = self.memory.begin(job.id, job.fence, attempt.started, attempt.expires)

    def extend(self, attempt: Attempt) -> None:
        """Note the new `expires` of an attempt that is being stopped."""
        if attempt.place is not None and attempt.stage is Stage.RUNNING:
            self.memory.extend(attempt.place, attempt.expires)

    def settle(self, attempt: Attempt, outcome: Outcome) -> None:
        """Settle an attempt that has ended, or never began."""
        if attempt.place is not None:
            self.memory.ended(attempt.place)
            if not attempt.handler.process:  # else another process ran it, and counts for itself
                self._recycling.ended(outcome, attempt.handler.rules.retry)
        self._runtime.settler.add(attempt, outcome)

    def accepted(self, attempts: Sequence[Attempt]) -> None:
        """Free the places of settled attempts, and retire if the process has done enough."""
        for attempt in attempts:
            if attempt.place is not None:
                self.memory.settled(attempt.place)
                attempt.place = None
        self._durations.extend(attempt.duration for attempt in attempts if attempt.begun)
        reason = self._recycling.verdict(self._runtime.slots.started)
        if reason is not None and not self._runtime.shutdown.begun:
            self.retire(reason)

    # -------------------------------------------------------------------------------- otherwise

    def expired(self, attempt: Attempt) -> None:
        """Replace this process if an abandoned attempt still runs after another grace."""
        if attempt.stage is Stage.ABANDONED:
            grace_s = self._runtime.options.stop_grace_us / SECOND_US
            self._runtime.loop.call_later(grace_s, self._retire_if_stuck)

    def retire(self, reason: str) -> None:
        """Ask to be replaced now, and leave once all that runs has ended."""
        if not self._retired:
            self._retired = True
            self._link.send(Retire(reason))
            self._runtime.shutdown.patient = True
            self._runtime.shutdown.advance(Phase.DRAINING, reason)

    def loop_blocked(self, culprit: Attempt | None, stack: str) -> None:
        """Note that the event loop is blocked, and by which attempt if that is known."""
        self.memory.blocked_by(None if culprit is None else culprit.place)
        self._blocked = stack

    def beat(self) -> None:
        """Report, and look at the memory in use; every second, in the heartbeat's thread."""
        runtime = self._runtime
        if not runtime.heartbeat.loop_blocked:
            self._blocked = ""
        self._report()
        swollen = self._recycling.swollen(runtime.slots.started)
        if swollen is not None and not runtime.shutdown.begun:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has left already
                runtime.loop.call_soon_threadsafe(self.retire, swollen)

    def left(self, *, finished: bool) -> None:
        """Tell the supervisor that the store holds nothing for this worker any more."""
        self._report()
        self._link.send(Left(finished))

    def _retire_if_stuck(self) -> None:
        stuck = self._runtime.threads.stuck + self._runtime.stopper.abandoned
        if stuck:
            self.retire(f"{counted(stuck, 'handler')} did not stop when told to")

    def _report(self) -> None:
        """Send a report if it differs from the last one, or that one is old."""
        runtime, counters = self._runtime, self._runtime.counters
        stuck = self._stuck()
        report = Report(
            succeeded=counters.succeeded,
            failed=counters.failed,
            retried=counters.retried,
            dead=counters.dead,
            expired=counters.expired,
            timed_out=counters.timed_out,
            abandoned=len(stuck),
            p95_duration_ms=self._p95_ms(),
            running=runtime.slots.occupied,
            trouble=", ".join(sorted(runtime.health.failing)),
            lease=runtime.lease.trusted,
            quiet=runtime.shutdown.quiet,
            stopping=runtime.shutdown.begun,
            stuck=tuple(stuck[:_STUCK_MAX]),
            blocked=self._blocked,
            ahead=len(runtime.slots.waiting),
            unsettled=runtime.settler.backlog,
            slots=runtime.capacity,
        )
        now = runtime.monotonic()
        series = self._tallies.changed() if self._link.counting else ()
        if series or report != self._last or now - self._sent_at >= _SILENCE_S:
            self._last, self._sent_at = report, now
            if not self._link.send(msgspec.structs.replace(report, series=series)):
                self._tallies.not_sent(series)

    def _stuck(self) -> list[Stuck]:
        """Abandoned handlers that still run, and where they are."""
        now = self._runtime.monotonic()
        found = [
            _stuck(attempt, now, stack_of_thread(thread), "thread")
            for attempt, thread in self._runtime.threads.stuck_threads()
        ]
        for attempt in self._runtime.stopper.abandoned_attempts():
            stacks = map(stack_of_task, attempt.live_tasks)
            found.append(_stuck(attempt, now, next(stacks, ""), "coroutine"))
        return found

    def _p95_ms(self) -> float | None:
        durations = sorted(self._durations.copy())
        if not durations:
            return None
        return round(durations[min(len(durations) - 1, len(durations) * 95 // 100)] * 1000, 3)


def _stuck(attempt: Attempt, now: float, stack: str, kind: str) -> Stuck:
    job = attempt.job
    seconds = round(max(0.0, now - attempt.expires), 1)
    return Stuck(job_id=job.id, task=job.task, seconds=seconds, stack=stack, kind=kind)


def hello_of(runtime: WorkerRuntime) -> Hello:
    """Describe a worker, and the rules to settle its jobs without it."""
    env, options = runtime.env, runtime.options
    return Hello(
        worker=runtime.worker,
        pid=os.getpid(),
        url=None,
        label=env.store.label,
        queues=options.queues,
        tasks={name: _rules(env.registry, name) for name in env.registry.names},
        lease_us=options.lease_us,
        concurrency=runtime.capacity,
        version=env.version,
        host=socket.gethostname(),
        stop_grace_us=options.stop_grace_us,
        shutdown_timeout_us=options.shutdown_timeout_us,
        default_timeout_us=options.default_timeout_us,
    )


def _rules(registry: Registry, name: str) -> TaskRules:
    task = registry.get(name)
    if task is None:
        return TaskRules()
    return TaskRules(task.retry, task.max_snoozes, task.result_keep_us, task.worker_id)
