# SPDX-License-Identifier: MIT
"""What the tests of the Redis store share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from packhorse.job import Job
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.redis.statements import Command
from packhorse.stores.redis.store import RedisStore
from packhorse.stores.requests import ClaimRequest, JobFilter, Renewal
from packhorse.testing.conformance.samples import ANNA, LEASE_US, QUEUE, TASK, TIMEOUT_US, new_job

#: Far longer than anything takes, so that only a hang reaches it.
PATIENCE_S: Final = 20.0
SOURCE: Final = Path(__file__).resolve().parents[3] / "src"


def submitting(store: RedisStore, *names: str) -> Plan[Any]:
    return store.jobs.submit([new_job(name) for name in names])


def claim(store: RedisStore, *, worker: str = ANNA, limit: int = 100) -> tuple[Job, ...]:
    """Renew the lease and claim."""
    store.run(store.leases.renew(renewing(worker)))
    return store.run(store.jobs.claim(claiming(worker=worker, limit=limit))).jobs


def claiming(*, worker: str = ANNA, limit: int = 100) -> ClaimRequest:
    return ClaimRequest(
        worker=worker, queues=(QUEUE,), tasks=(TASK,), limit=limit, default_timeout_us=TIMEOUT_US
    )


def renewing(worker: str = ANNA, lease_us: int = LEASE_US, **details: Any) -> Renewal:
    return Renewal(worker, lease_us, queues=(QUEUE,), tasks=(TASK,), **details)


def names_in(store: RedisStore) -> list[str]:
    """The ids of the jobs in the store, the oldest first."""
    page = store.run(store.inspection.search(JobFilter(), limit=10_000))
    return [record.id for record in reversed(page.jobs)]


def asking(*command: Any, verb: str = "ask", writes: bool = False) -> Plan[Any]:
    """A plan that is one command."""

    def steps() -> Steps[Any]:
        reply = yield Command(*command)
        return reply

    return Plan(verb, steps, writes=writes)


def in_threads(*work: Callable[[], object]) -> None:
    """Do all of it at once, each in a thread of its own; the first error is raised here."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(work))

    def attempt(one: Callable[[], object]) -> None:
        try:
            barrier.wait(PATIENCE_S)
            one()
        except BaseException as error:  # noqa: BLE001 - raised by the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=attempt, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    for error in errors:
        raise error


def fork(work: Callable[[], object]) -> int:
    """Start a child that does the work and leaves; `reap` says how it went."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(PATIENCE_S))  # a child that hangs is a failure, not a hang
        try:
            work()
        except BaseException:  # noqa: BLE001 - told by the exit code
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def reap(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def python(text: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter of its own."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", text, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
