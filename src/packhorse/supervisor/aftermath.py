# SPDX-License-Identifier: MIT
"""What becomes of the jobs of a worker process that is gone: settled at once, not by lease.

on the board, process crashed        a crash with its evidence; pinned on it if it ran alone
on the board, beyond its time        a timeout, as its worker would have said
on the board, killed for another     given back, part of history, no blame
ended, and the store not told        given back, part of history, no blame
held, not begun                      given back, costs nothing
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

import msgspec

from packhorse.clock import Chance
from packhorse.job import AttemptError, Job, JobRecord, RetryRule
from packhorse.lifecycle import Limits, Orphan, rescue, settle
from packhorse.outcome import Outcome, Released, TimedOut
from packhorse.policies.retention import Retention
from packhorse.settlement import Settlement, SettlementKind, Verdict
from packhorse.stores.protocol import Store
from packhorse.stores.requests import QueueSettings, Renewal
from packhorse.supervisor.messages import Hello, TaskRules
from packhorse.supervisor.page import Running, job_key
from packhorse.supervisor.process import Death

__all__ = ["Aftermath", "Buried", "Cause", "bury"]

#: Jobs settled in one write.
_BATCH: Final = 200
#: Batches; more than this no worker holds.
_BATCHES_MAX: Final = 100
#: How often nothing must be found before that is believed of a process that was running something:
#: its last renewal may arrive after its death, and make the lease look whole for a moment.
_LOOKS: Final = 2
_MESSAGE_MAX: Final = 2_000
#: A lease of no length is over at once; its jobs stay where they are.
_NO_LEASE_US: Final = 0


class Cause(Enum):
    """Why a process is gone."""

    CRASH = "crash"  #: it died of itself, or somebody killed it
    STUCK = "stuck"  #: the supervisor killed it: its event loop was blocked beyond a job's time
    SHUTDOWN = "shutdown"  #: the supervisor killed it: it took too long to stop


@dataclass(frozen=True, slots=True)
class Buried:
    """A job of a dead process, and what was written about it."""

    settlement: Settlement
    limits: Limits
    record: JobRecord | None  #: as it was before; None if it is not kept any more
    ran_s: float  #: how long its handler had run
    verdict: Verdict = Verdict.APPLIED


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What was settled."""

    buried: tuple[Buried, ...] = ()

    @property
    def released(self) -> tuple[str, ...]:
        """The jobs that were given back, at no cost."""
        kind = SettlementKind.RELEASED
        settlements = (each.settlement for each in self.buried)
        return tuple(each.job_id for each in settlements if each.kind is kind)


def bury(store: Store, hello: Hello, death: Death, cause: Cause, chance: Chance) -> Aftermath:
    """Settle all that a dead worker holds, and take it off the list. May be called again."""
    board = {(each.job_id, each.fence): each for each in death.running}
    buried: list[Buried] = []
    looks = _LOOKS if board else 1
    for _ in range(_BATCHES_MAX):
        orphans = _orphans(store, hello)
        if not orphans:
            looks -= 1
            if not looks:
                break
            continue
        undertaker = _Undertaker(store, hello, death, cause, chance)
        settled = [undertaker.settled(each, board) for each in orphans]
        verdicts = store.run(store.jobs.settle([each.settlement for each in settled]))
        buried += map(_judged, settled, verdicts)
    store.run(store.leases.leave(hello.worker))
    return Aftermath(tuple(each for each in buried if each.verdict is not Verdict.STALE))


def _judged(buried: Buried, verdict: Verdict) -> Buried:
    return replace(buried, verdict=verdict)


def _orphans(store: Store, hello: Hello) -> list[Orphan]:
    """End the lease, and see what is held under it: by now it has run out, and rescues apply."""
    renewal = Renewal(worker=hello.worker, lease_us=_NO_LEASE_US, host=hello.host, pid=hello.pid)
    store.run(store.leases.renew(renewal))
    found = store.run(store.leases.orphans([hello.worker], limit=_BATCH))
    return [orphan for orphan in found if orphan.worker == hello.worker]


class _Undertaker:
    """Decides about each job of one dead process."""

    def __init__(
        self, store: Store, hello: Hello, death: Death, cause: Cause, chance: Chance
    ) -> None:
        self._store = store
        self._hello = hello
        self._death = death
        self._cause = cause
        self._chance = chance
        self._unsettled = {(each.job_id, each.fence) for each in death.unsettled}
        self._queues: Mapping[str, QueueSettings] | None = None

    def settled(self, orphan: Orphan, board: Mapping[tuple[str, int], Running]) -> Buried:
        record = self._store.run(self._store.inspection.job(orphan.job_id))
        running = board.get(job_key(orphan.job_id, orphan.fence))
        limits = self._limits(record)
        ran_s = 0.0 if running is None else max(0.0, self._death.at - running.started)
        if running is not None and self._cause is Cause.CRASH:
            alone = len(board) == 1 and not self._death.from_outside
            return Buried(self._crashed(orphan, alone=alone), limits, record, ran_s)
        outcome = self._outcome(orphan, running, record)
        settlement = settle(_job(orphan, record), outcome, limits, roll=self._chance.roll())
        return Buried(settlement, limits, record, ran_s)

    def _outcome(
        self, orphan: Orphan, running: Running | None, record: JobRecord | None
    ) -> Outcome:
        if running is None:
            key = job_key(orphan.job_id, orphan.fence)
            return Released(started=key in self._unsettled)
        if self._cause is Cause.STUCK and running.expires <= self._death.at:
            return self._timed_out(orphan, running, record)
        return Released(started=True)

    def _crashed(self, orphan: Orphan, *, alone: bool) -> Settlement:
        """A crash; the only job of a process is the one that took it down."""
        pinned = msgspec.structs.replace(orphan, alone=orphan.alone or alone)
        message = f"its process {self._hello.pid} ended while it ran: {self._death.evidence}"
        error = AttemptError(
            type="WorkerLost",
            message=message[:_MESSAGE_MAX],
            code="WORKER_LOST",
            reason="worker_lost",
            stack=self._death.stacks or None,
        )
        return msgspec.structs.replace(rescue(pinned), error=error)

    def _timed_out(self, orphan: Orphan, running: Running, record: JobRecord | None) -> TimedOut:
        deadline_us = None if record is None else record.deadline_us
        expired = deadline_us is not None and deadline_us <= orphan.now_us
        spent_ms = round((running.expires - running.started) * 1000)
        error = AttemptError(
            type="Timeout",
            message=(
                f"Task exceeded {spent_ms}ms timeout and blocked its process, which was killed"
            ),
            code="DEADLINE_EXCEEDED" if expired else "TASK_TIMEOUT",
            reason="deadline" if expired else "job_timeout",
            stack=self._death.stacks or None,
        )
        return TimedOut(error, deadline=expired)

    def _limits(self, record: JobRecord | None) -> Limits:
        """What binds the job: its own options, else its task's, else its queue's."""
        if record is None:
            return Limits()
        if self._queues is None:
            states = self._store.run(self._store.queues.queues())
            self._queues = {state.settings.name: state.settings for state in states}
        queue = self._queues.get(record.queue) or QueueSettings(record.queue)
        task = self._hello.tasks.get(record.task) or TaskRules()
        own = None if record.options is None else record.options.retry
        return Limits(
            retry=own or task.retry or queue.retry or RetryRule(),
            max_snoozes=task.max_snoozes,
            retention=queue.retention or Retention(),
            result_keep_us=task.result_keep_us,
        )


def _job(orphan: Orphan, record: JobRecord | None) -> Job:
    """As much of a job as a decision about it needs."""
    counters = None if record is None else record.counters
    return Job(
        id=orphan.job_id,
        task="" if record is None else record.task,
        queue="" if record is None else record.queue,
        fence=orphan.fence,
        payload="",
        priority=0,
        tenant="",
        attempts=0,
        failures=0 if counters is None else counters.failures,
        crashes=orphan.crashes,
        lone_crashes=orphan.lone_crashes,
        snoozes=0 if counters is None else counters.snoozes,
        timeout_us=None,
        deadline_us=None if record is None else record.deadline_us,
        trace_id="",
        upstream_request_id=None,
        options=None,
        ready_us=0,
    )
