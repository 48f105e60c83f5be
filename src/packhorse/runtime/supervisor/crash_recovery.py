# SPDX-License-Identifier: MIT
"""Settle the jobs of a worker process that is gone, without waiting for its lease to run out.

running, process crashed            a crash with its evidence; pinned on the job if it ran alone
running, beyond its time            a timeout, as its worker would have settled it
running, process killed otherwise   given back, part of history, no blame
ended, not settled                  given back, part of history, no blame
held, not begun                     given back at no cost
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

import msgspec

from packhorse.context import detached_job
from packhorse.core.clock import Chance
from packhorse.core.job import (
    AttemptError,
    Counters,
    Job,
    JobOptions,
    JobRecord,
    RetryRule,
)
from packhorse.core.lifecycle import JobRules, Orphan, rescue, settle
from packhorse.core.outcome import Outcome, Released, TimedOut
from packhorse.core.policies.retention import Retention
from packhorse.core.policies.series import OUTCOMES, Series, added
from packhorse.core.settlement import (
    Counted,
    Settlement,
    SettlementKind,
    Verdict,
    counted_as,
    end_events,
    rescued_before,
    timed_out,
)
from packhorse.core.text import counted
from packhorse.events import (
    EventBus,
    JobEnded,
)
from packhorse.logs import attach
from packhorse.runtime.services.history_keeper import keep_lost
from packhorse.runtime.supervisor.child_process import Death
from packhorse.runtime.supervisor.messages import Hello, Report, TaskRules
from packhorse.runtime.supervisor.shared_memory import Running, job_key
from packhorse.runtime.supervisor.store_client import StoreClient
from packhorse.stores.protocol import Store
from packhorse.stores.requests import QueueSettings, Renewal

_LOG: Final = logging.getLogger("packhorse.supervisor")
#: Jobs settled in one write, and the most writes: no worker holds more.
_BATCH: Final = 200
_BATCHES_MAX: Final = 100
#: How often no job must be found before a process that ran some is done with: its last renewal may
#: arrive after its death, and revive the lease for a moment.
_EMPTY_READS: Final = 2
#: A lease of no length is over at once.
_NO_LEASE_US: Final = 0
#: Tries and waits while the store fails; after them the lease has run out, and rescuers take over.
_TRIES: Final = 60
_WAIT_S: Final = 0.5
#: Jobs named in one line of the log.
_NAMED: Final = 10
_FAILED: Final = frozenset({Counted.RETRIED, Counted.DEAD})


class Cause(Enum):
    """Why a process is gone."""

    CRASH = "crash"  #: it died by itself, or was killed from outside
    STUCK = "stuck"  #: the supervisor killed it: its event loop was blocked beyond a job's time
    SHUTDOWN = "shutdown"  #: the supervisor killed it: it took too long to stop


@dataclass(frozen=True, slots=True)
class RecoveredJob:
    """A job of a dead process, and its settlement."""

    settlement: Settlement
    rules: JobRules
    record: JobRecord | None  #: as it was before; None if it is not kept any more
    ran_s: float  #: how long its handler had run
    verdict: Verdict = Verdict.APPLIED

    @property
    def counted(self) -> Counted | None:
        """As what the attempt counts."""
        return counted_as(self.settlement, self.verdict)


class CrashRecovery:
    """Recover the jobs of dead processes in the background, until the store has taken them."""

    def __init__(self, chance: Chance) -> None:
        self.settled = Report()  #: what was settled, counted as a worker counts
        self._chance = chance
        self._bus = EventBus()
        attach(self._bus)  # to the log alone: observers are user code
        self._tasks: set[asyncio.Task[None]] = set()  # at most one per process that died

    def begin(self, client: StoreClient | None, hello: Hello, death: Death, cause: Cause) -> None:
        """Start to recover the jobs of a dead process."""
        if client is None:
            return  # its store died with it
        task = asyncio.ensure_future(self._recover(client, hello, death, cause))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def ended(self, timeout_s: float) -> None:
        """Wait until all is settled, at most this long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    async def _recover(self, client: StoreClient, hello: Hello, death: Death, cause: Cause) -> None:
        so_far = Recovered()
        for _ in range(_TRIES):
            try:
                await client.ask(
                    lambda store: recover_jobs(
                        *(store, hello, death, cause, self._chance), so_far=so_far
                    )
                )
                break
            except Exception as error:  # noqa: BLE001 - tried again; the lease runs out meanwhile
                _LOG.warning("the jobs of process %s wait for the store: %s", hello.pid, error)
                await asyncio.sleep(_WAIT_S)
        self.settled = emit_recovered(self._bus, hello, so_far.jobs).after(self.settled)


@dataclass(slots=True)
class Recovered:
    """What has become of the jobs of one dead process, over all tries: the store says it once."""

    jobs: list[RecoveredJob] = field(default_factory=list)
    unanswered: list[RecoveredJob] = field(default_factory=list)  #: it may have been written
    kept: bool = False  #: the history has them

    def settle(self, store: Store, worker: str, jobs: Sequence[RecoveredJob]) -> None:
        """Write what was decided; a settlement that is sent twice is written once."""
        self.unanswered = list(jobs)
        verdicts = [*store.run(store.jobs.settle([each.settlement for each in jobs]))]
        for at, job in enumerate(jobs):
            if verdicts[at] is Verdict.STALE:  # also of a crash that was written before
                history = store.run(store.inspection.history(job.settlement.job_id))
                verdicts[at] = rescued_before(job.settlement, worker, history)
        self.unanswered = []
        pairs = zip(jobs, verdicts, strict=True)
        self.jobs += [replace(job, verdict=it) for job, it in pairs if it is not Verdict.STALE]


def recover_jobs(
    store: Store, hello: Hello, death: Death, cause: Cause, chance: Chance, *, so_far: Recovered
) -> None:
    """Settle all that a dead worker holds, and remove the worker. May be called again."""
    decisions = _Decisions(store, hello, death, cause, chance)
    if so_far.unanswered:
        so_far.settle(store, hello.worker, so_far.unanswered)
    empty_reads = _EMPTY_READS if death.running else 1
    for _ in range(_BATCHES_MAX):
        orphans = _orphans(store, hello)
        if not orphans:
            empty_reads -= 1
            if not empty_reads:
                break
            continue
        so_far.settle(store, hello.worker, [decisions.decide(each) for each in orphans])
    if not so_far.kept:
        keep_lost(store, hello.worker, _series_of(so_far.jobs))
        so_far.kept = True
    store.run(store.leases.leave(hello.worker))


def _orphans(store: Store, hello: Hello) -> list[Orphan]:
    """End the lease, and read the jobs held under it."""
    renewal = Renewal(worker=hello.worker, lease_us=_NO_LEASE_US, host=hello.host, pid=hello.pid)
    store.run(store.leases.renew(renewal))
    found = store.run(store.leases.orphans([hello.worker], limit=_BATCH))
    return [orphan for orphan in found if orphan.worker == hello.worker]


class _Decisions:
    """Decide how each job of one dead process is settled."""

    def __init__(
        self, store: Store, hello: Hello, death: Death, cause: Cause, chance: Chance
    ) -> None:
        self._store = store
        self._hello = hello
        self._death = death
        self._cause = cause
        self._chance = chance
        self._running = {(each.job_id, each.fence): each for each in death.running}
        self._unsettled = {(each.job_id, each.fence) for each in death.unsettled}
        self._queues: Mapping[str, QueueSettings] | None = None

    def decide(self, orphan: Orphan) -> RecoveredJob:
        record = self._store.run(self._store.inspection.job(orphan.job_id))
        running = self._running.get(job_key(orphan.job_id, orphan.fence))
        rules = self._rules(record)
        ran_s = 0.0 if running is None else max(0.0, self._death.at - running.started)
        if running is not None and self._cause is Cause.CRASH:
            return RecoveredJob(self._crashed(orphan), rules, record, ran_s)
        outcome = self._outcome(orphan, running, record)
        settlement = settle(_job(orphan, record), outcome, rules, roll=self._chance.roll())
        return RecoveredJob(settlement, rules, record, ran_s)

    def _outcome(
        self, orphan: Orphan, running: Running | None, record: JobRecord | None
    ) -> Outcome:
        if running is None:
            key = job_key(orphan.job_id, orphan.fence)
            return Released(started=key in self._unsettled)
        if self._cause is Cause.STUCK and running.expires <= self._death.at:
            return self._timed_out(orphan, running, record)
        return Released(started=True)

    def _crashed(self, orphan: Orphan) -> Settlement:
        """Settle a crash; a job that ran alone has taken the process down."""
        told_of = orphan.alone or not self._death.from_outside
        alone = told_of and len(self._running) == 1  # a suspect of long standing has company
        pinned = msgspec.structs.replace(orphan, alone=alone)
        error = self._death.attempt_error(self._hello.pid)
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

    def _rules(self, record: JobRecord | None) -> JobRules:
        """Return the job's own rules, else its task's, else its queue's."""
        if record is None:
            return JobRules()
        if self._queues is None:
            states = self._store.run(self._store.queues.queues())
            self._queues = {state.settings.name: state.settings for state in states}
        queue = self._queues.get(record.queue) or QueueSettings(record.queue)
        task = self._hello.tasks.get(record.task) or TaskRules()
        own = record.options or JobOptions()
        return JobRules(
            retry=own.retry or task.retry or queue.retry or RetryRule(),
            max_snoozes=task.max_snoozes,
            retention=queue.retention or Retention(),
            result_keep_us=task.result_keep_us,
            max_crashes=own.max_crashes,
        )


def _job(orphan: Orphan, record: JobRecord | None) -> Job:
    """Build as much of a job as `settle` needs."""
    job = msgspec.structs.replace(
        detached_job(""),
        id=orphan.job_id,
        fence=orphan.fence,
        crashes=orphan.crashes,
        lone_crashes=orphan.lone_crashes,
    )
    if record is None:
        return job
    return msgspec.structs.replace(
        job,
        task=record.task,
        queue=record.queue,
        failures=record.counters.failures,
        snoozes=record.counters.snoozes,
        deadline_us=record.deadline_us,
    )


# ----------------------------------------------------------------------------------------- events


def emit_recovered(bus: EventBus, hello: Hello, jobs: Sequence[RecoveredJob]) -> Report:
    """Emit the events that the dead worker would have emitted; return the counts."""
    counts = Counter(job.counted for job in jobs)
    expired = [job.counted for job in jobs if job.verdict is Verdict.EXPIRED]
    for job in jobs:
        for event in recovered_events(job, hello):
            bus.emit(event)
    settlements = [job.settlement for job in jobs]
    released = [each.job_id for each in settlements if each.kind is SettlementKind.RELEASED]
    if released:
        _LOG.warning(
            "%s of process %s given back: %s",
            *(counted(len(released), "job"), hello.pid, ", ".join(released[:_NAMED])),
        )
    return Report(
        series=_series_of(jobs),
        failed=counts[Counted.RETRIED] + counts[Counted.DEAD],
        timed_out=sum(timed_out(job.settlement) for job in jobs if job.counted in _FAILED),
        retried=counts[Counted.RETRIED],
        dead=counts[Counted.DEAD] + sum(each is not Counted.DEAD for each in expired),
        expired=len(expired),
    )


def _series_of(jobs: Sequence[RecoveredJob]) -> tuple[Series, ...]:
    return added(*([each] for each in map(_series, jobs) if each is not None))


def _series(job: RecoveredJob) -> Series | None:
    """Count one attempt as its worker would have counted it."""
    record, counted = job.record, job.counted
    if record is None or counted is None:
        return None
    timeouts = int(counted in _FAILED and timed_out(job.settlement))
    outcomes = tuple(int(each == counted) for each in OUTCOMES)
    return Series(record.queue, record.task, outcomes, timeouts)


def recovered_events(job: RecoveredJob, hello: Hello) -> Iterator[JobEnded]:
    """Return the events about one job; none about one that was given back before it began."""
    return end_events(
        *(job.settlement, job.verdict, _end(job, hello)),
        Counters() if job.record is None else job.record.counters,
        max_retries=job.rules.retry.max_retries,
        max_crashes=job.rules.crashes_allowed,
    )


def _end(job: RecoveredJob, hello: Hello) -> dict[str, Any]:
    """Return the fields of every event about the end of an attempt."""
    about: dict[str, Any] = {
        "job_id": job.settlement.job_id,
        "worker": hello.worker,
        "duration_ms": job.ran_s * 1000,
    }
    if (record := job.record) is not None:
        about |= {
            "worker_id": (hello.tasks.get(record.task) or TaskRules()).worker_id,
            "queue": record.queue,
            "task": record.task,
            "tenant": record.tenant,
            "attempt": record.counters.attempts + 1,
            "trace_id": record.trace_id,
            "upstream_request_id": record.upstream_request_id,
        }
    return about
