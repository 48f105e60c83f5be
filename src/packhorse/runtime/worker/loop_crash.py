# SPDX-License-Identifier: MIT
"""Recover from a job that ended the worker's event loop: settle its jobs as a crash would be.

ended before, not stored yet     stored now, as it ended
running                          a crash with its evidence; pinned on it if it ran alone
cancelled along with the loop    the same: who cancels all tasks cancels its own
held, not begun                  given back, costs nothing
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Final, NoReturn

from packhorse.core.settlement import Counted, Verdict, timed_out
from packhorse.runtime.supervisor.child_process import Death
from packhorse.runtime.supervisor.crash_recovery import (
    Cause,
    Recovered,
    emit_recovered,
    recover_jobs,
)
from packhorse.runtime.supervisor.shared_memory import Running, job_key
from packhorse.runtime.worker.attempt import Attempt, Stage
from packhorse.runtime.worker.recycling import memory_mib
from packhorse.runtime.worker.shutdown import Phase
from packhorse.runtime.worker.supervised import SupervisorReporter, hello_of
from packhorse.runtime.worker.worker_runtime import WorkerRuntime

_LOG: Final = logging.getLogger("packhorse.worker")
_EXIT_FAILED: Final = 1
#: Jobs named in one line of the log.
_NAMED: Final = 10


def crash(runtime: WorkerRuntime, evidence: str) -> None:
    """Settle what the worker ran, and leave; a supervised process ends here and now."""
    lost = [each for each in runtime.slots.running_attempts() if each.stage is Stage.RUNNING]
    try:
        lost += runtime.settler.write_now()
    except Exception as error:  # noqa: BLE001 - what is not stored runs again
        _LOG.warning("what had ended could not be stored: %s", error)
    names = ", ".join(f"job {each.job.id} ({each.job.task})" for each in lost[:_NAMED])
    problem = f"code of a job ended the event loop ({evidence}); it ran {names or 'no job'}"
    _LOG.error("%s", problem)
    if runtime.supervisor is not None:
        _die(runtime.supervisor, lost)
    runtime.problem = problem
    runtime.shutdown.advance(Phase.LEAVING, problem)
    try:
        _recover(runtime, lost, evidence)
    except Exception as error:  # noqa: BLE001 - the lease runs out, and others rescue
        _LOG.warning("the jobs that ran wait for the lease to run out: %s", error)
    runtime.slots.drop()


def _die(reporter: SupervisorReporter, lost: Sequence[Attempt]) -> NoReturn:
    """End the process: its supervisor sees in shared memory what it ran, and starts another."""
    for attempt in lost:
        if attempt.place is not None:
            reporter.memory.extend(attempt.place, attempt.expires)
    logging.shutdown()
    os._exit(_EXIT_FAILED)


def _recover(runtime: WorkerRuntime, lost: Sequence[Attempt], evidence: str) -> None:
    """Do what a supervisor would do: this process has none."""
    runtime.heartbeat.stop()  # it would make the lease look whole
    env = runtime.env
    hello = hello_of(runtime)
    death = Death(
        exit_code=None,
        signal=None,
        memory_mib=memory_mib(),
        words=f"code of a job ended the event loop ({evidence})",
        running=tuple(_running(each) for each in lost),
        at=env.clock.monotonic(),
    )
    recovered = Recovered()
    try:
        recover_jobs(env.store, hello, death, Cause.CRASH, env.chance, so_far=recovered)
    finally:  # also of what was settled before the store failed
        emit_recovered(env.bus, hello, recovered.jobs)
        for job in recovered.jobs:
            if job.counted is not None:
                runtime.counters.count(job.counted, timed_out=timed_out(job.settlement))
            if job.verdict is Verdict.EXPIRED:
                runtime.counters.count_expired(1, dead=job.counted is not Counted.DEAD)


def _running(attempt: Attempt) -> Running:
    job_id, fence = job_key(attempt.job.id, attempt.job.fence)
    return Running(0, job_id, fence, attempt.started, attempt.expires)
