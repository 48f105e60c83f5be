# SPDX-License-Identifier: MIT
"""Who pays when a worker process is gone: decided at once, on a store and with no process."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from packhorse import DeadReason, JobStatus
from packhorse.core.clock import SECOND_US, SystemChance, SystemClock
from packhorse.core.job import AttemptError, Job, JobOptions, JobRecord, NewJob, RetryRule
from packhorse.core.lifecycle import JobRules, rescue, settle
from packhorse.core.outcome import Crashed
from packhorse.core.policies.history import PART_KIND, decode_part
from packhorse.core.settlement import SettlementKind, Verdict
from packhorse.errors import StoreUnavailable
from packhorse.events import Event, EventBus
from packhorse.runtime.supervisor import crash_recovery
from packhorse.runtime.supervisor.child_process import Death
from packhorse.runtime.supervisor.crash_recovery import (
    Cause,
    CrashRecovery,
    Recovered,
    RecoveredJob,
    emit_recovered,
    recover_jobs,
)
from packhorse.runtime.supervisor.messages import Hello, TaskRules
from packhorse.runtime.supervisor.shared_memory import Running
from packhorse.runtime.supervisor.store_client import StoreClient
from packhorse.stores import open_store
from packhorse.stores.memory.store import MemoryStore
from packhorse.stores.protocol import Store
from packhorse.stores.requests import ClaimRequest, Renewal
from packhorse.testing.virtual_clock import VirtualClock
from tests.servers.urls import store_url_of
from tests.supervisor.yard import PATIENCE_S
from tests.unit.consumer_support import EVERY_STORE

WORKER: Final = "anna"
HELLO: Final = Hello(
    worker=WORKER,
    pid=4711,
    url="memory://",
    label="memory://",
    queues=("default",),
    tasks={"work": TaskRules(retry=RetryRule(max_retries=0))},
    lease_us=30_000_000,
    concurrency=10,
    version="1",
    host="here",
    stop_grace_us=5_000_000,
    shutdown_timeout_us=30_000_000,
    default_timeout_us=300_000_000,
)


def claim(store: Store, count: int, *, quarantine: bool = False) -> tuple[Job, ...]:
    store.run(store.leases.renew(Renewal(WORKER, 30_000_000)))
    request = ClaimRequest(
        WORKER, ("default",), ("work",), count, 300_000_000, quarantine=quarantine
    )
    return store.run(store.jobs.claim(request)).jobs


class Scene:
    """A store, and the jobs a worker has claimed there."""

    def __init__(self, count: int, **options: Any) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore(clock=self.clock)
        self.store.run(
            self.store.jobs.submit(
                [NewJob(f"job-{n}", "work", b"{}", **options) for n in range(count)]
            )
        )
        self.jobs = self.claim(count)

    def claim(self, count: int, *, quarantine: bool = False) -> tuple[Job, ...]:
        return claim(self.store, count, quarantine=quarantine)

    def lose(self) -> None:
        """Have what is claimed lost with its worker, and due again."""
        self.clock.advance(60)
        orphans = self.store.run(self.store.leases.orphans([WORKER], limit=10))
        self.store.run(self.store.jobs.settle([rescue(orphan) for orphan in orphans]))
        self.clock.advance(60)

    def recover(
        self,
        cause: Cause,
        running: list[tuple[Job, float]],
        *,
        hello: Hello = HELLO,
        **about: Any,
    ) -> tuple[RecoveredJob, ...]:
        board = tuple(
            Running(place, job.id, job.fence, 0.0, expires)
            for place, (job, expires) in enumerate(running)
        )
        usual = {"exit_code": None, "signal": 11, "memory_mib": 123.0, "at": 100.0}
        death = Death(**{**usual, **about}, running=board)
        so_far = Recovered()
        recover_jobs(self.store, hello, death, cause, SystemChance(1), so_far=so_far)
        return tuple(so_far.jobs)

    def record(self, job: Job) -> JobRecord:
        found = self.store.run(self.store.inspection.job(job.id))
        assert found is not None
        return found

    def counted(self, job: Job) -> tuple[int, int, int, int, int]:
        """Attempts, failures, crashes, lone crashes, releases."""
        c = self.record(job).counters
        return c.attempts, c.failures, c.crashes, c.lone_crashes, c.releases


@pytest.mark.req("S4-26", "S3-26")
def test_the_only_job_of_a_process_that_crashed_is_the_one_that_did_it() -> None:
    scene = Scene(2)
    alone, ahead = scene.jobs

    scene.recover(Cause.CRASH, [(alone, 200.0)], last_log="half way", stacks="in work")

    record = scene.record(alone)
    assert scene.counted(alone) == (1, 0, 1, 1, 0)
    assert scene.counted(ahead) == (0, 0, 0, 0, 1)  # not begun: costs nothing
    assert scene.record(ahead).status is JobStatus.QUEUED
    assert record.error is not None
    assert record.error.message == (
        "its process 4711 ended while it ran: signal SIGSEGV, 123 MiB at most; "
        "last log line: half way"
    )
    assert (record.error.code, record.error.stack) == ("WORKER_LOST", "in work")
    assert scene.store.run(scene.store.leases.workers()) == ()


def test_a_suspect_beside_which_others_ran_is_not_to_blame() -> None:
    scene = Scene(1)
    scene.lose()
    scene.claim(1)
    scene.lose()
    suspect = scene.claim(1, quarantine=True)[0]
    scene.store.run(scene.store.jobs.submit([NewJob("beside", "work", b"{}")]))

    scene.recover(Cause.CRASH, [(suspect, 200.0), (scene.claim(1)[0], 200.0)])

    assert scene.counted(suspect) == (3, 0, 3, 0, 0)


@pytest.mark.parametrize(
    ("out_of_memory", "lone"), [(True, 1), (None, 1), (False, 0)], ids=["memory", "unknown", "not"]
)
def test_a_kill_from_outside_is_pinned_on_no_job_one_for_want_of_memory_is(
    out_of_memory: bool | None,  # noqa: FBT001 - a case
    lone: int,
) -> None:
    scene = Scene(1)

    scene.recover(Cause.CRASH, [(scene.jobs[0], 200.0)], signal=9, out_of_memory=out_of_memory)

    assert scene.counted(scene.jobs[0]) == (1, 0, 1, lone, 0)
    error = scene.record(scene.jobs[0]).error
    assert error is not None
    assert ("out of memory" in error.message) is bool(out_of_memory)


@pytest.mark.req("X-13")
def test_a_job_that_may_start_once_is_not_given_back_when_its_process_was_stopped() -> None:
    scene = Scene(2, options=JobOptions(max_crashes=0))
    begun, ahead = scene.jobs

    scene.recover(Cause.SHUTDOWN, [(begun, 200.0)])

    assert scene.record(begun).dead_reason is DeadReason.WORKER_CRASHED
    assert scene.record(ahead).status is JobStatus.QUEUED


def test_of_several_jobs_in_a_process_that_crashed_none_is_pinned_down() -> None:
    scene = Scene(3)

    scene.recover(Cause.CRASH, [(job, 200.0) for job in scene.jobs])

    assert {scene.counted(job) for job in scene.jobs} == {(1, 0, 1, 0, 0)}


@pytest.mark.req("S3-11", "S3-13", "S3-29", "S1-31")
def test_a_stuck_process_costs_those_beyond_their_time_a_timeout_and_the_others_nothing() -> None:
    scene = Scene(3)
    late, in_time, ahead = scene.jobs

    scene.recover(Cause.STUCK, [(late, 90.0), (in_time, 101.0)])

    assert scene.counted(late) == (1, 1, 0, 0, 0)
    assert scene.record(late).dead_reason is DeadReason.POISON_MESSAGE  # its task retries nothing
    error = scene.record(late).error
    assert error is not None
    assert (error.type, error.code) == ("Timeout", "TASK_TIMEOUT")
    assert scene.counted(in_time) == (1, 0, 0, 0, 1)
    assert scene.counted(ahead) == (0, 0, 0, 0, 1)


def test_a_job_whose_deadline_passed_in_a_stuck_process_has_expired() -> None:
    scene = Scene(1, deadline_us=VirtualClock().now_us() + 1)
    (job,) = scene.jobs
    scene.clock.advance(1.0)
    scene.store.run(scene.store.leases.renew(Renewal(WORKER, 30_000_000)))

    scene.recover(Cause.STUCK, [(job, 90.0)])

    assert scene.record(job).dead_reason is DeadReason.EXPIRED


@pytest.mark.req("S4-12")
def test_a_process_killed_because_it_would_not_stop_proves_nothing_against_its_jobs() -> None:
    scene = Scene(2)

    scene.recover(Cause.SHUTDOWN, [(scene.jobs[0], 50.0)], signal=9)

    assert scene.counted(scene.jobs[0]) == (1, 0, 0, 0, 1)
    assert scene.counted(scene.jobs[1]) == (0, 0, 0, 0, 1)
    assert {scene.record(job).status for job in scene.jobs} == {JobStatus.QUEUED}


def test_an_attempt_that_had_ended_is_counted_and_blamed_for_nothing() -> None:
    scene = Scene(2)
    running, ended = scene.jobs
    unsettled = (Running(5, ended.id, ended.fence, 0.0, -1.0),)

    scene.recover(Cause.CRASH, [(running, 200.0)], unsettled=unsettled)

    assert scene.counted(ended) == (1, 0, 0, 0, 1)
    assert scene.counted(running) == (1, 0, 1, 1, 0)


def test_what_was_settled_in_time_is_left_alone() -> None:
    scene = Scene(1)
    (job,) = scene.jobs
    scene.store.run(scene.store.leases.leave(WORKER))  # all it held was given back
    taken = ClaimRequest("ben", ("default",), ("work",), 1, 300_000_000)
    scene.store.run(scene.store.leases.renew(Renewal("ben", 30_000_000)))
    assert scene.store.run(scene.store.jobs.claim(taken)).jobs

    scene.recover(Cause.CRASH, [(job, 200.0)])

    assert scene.record(job).status is JobStatus.PROCESSING
    assert scene.record(job).worker == "ben"


@pytest.mark.parametrize(
    ("lone", "max_crashes", "dead"), [(0, None, False), (2, None, True), (0, 1, True)]
)
def test_a_job_whose_own_process_died_waits_longer_each_time_until_it_is_given_up(
    lone: int,
    max_crashes: int | None,
    dead: bool,  # noqa: FBT001 - a case
) -> None:
    job = msgspec.structs.replace(Scene(1).jobs[0], crashes=lone, lone_crashes=lone)
    crashed = Crashed(AttemptError("WorkerLost", "its process died", "WORKER_LOST"))

    settled = settle(job, crashed, JobRules(max_crashes=max_crashes), roll=0.5)

    assert (settled.crashes, settled.lone_crashes, settled.failures) == (1, 1, 0)
    assert (settled.dead_reason is DeadReason.WORKER_CRASHED) is dead
    if not dead:
        assert settled.kind is SettlementKind.FAILED
        assert settled.delay_us == 2_000_000


@pytest.mark.req("S4-26")
def test_a_last_renewal_that_arrives_late_does_not_hide_the_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Sent by the process just before it died, and on its way for longer than the recovery took.
    scene = Scene(1)
    orphans = scene.store.leases.orphans
    late = [Renewal(WORKER, 30_000_000)]

    def after_it(*arguments: Any, **options: Any) -> Any:
        if late:
            scene.store.run(scene.store.leases.renew(late.pop()))
        return orphans(*arguments, **options)

    monkeypatch.setattr(scene.store.leases, "orphans", after_it)
    scene.recover(Cause.CRASH, [(scene.jobs[0], 200.0)])

    assert scene.counted(scene.jobs[0]) == (1, 0, 1, 1, 0)
    assert scene.store.run(scene.store.leases.workers()) == ()


@pytest.mark.parametrize("cause", [Cause.STUCK, Cause.CRASH, Cause.SHUTDOWN])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(("verb", "call"), [("settle", 2), ("orphans", 3), ("leave", 1)])
async def test_a_store_that_fails_in_between_loses_no_event_and_no_count(
    monkeypatch: pytest.MonkeyPatch, verb: str, call: int, moment: str, cause: Cause
) -> None:
    calls: list[tuple[str, str]] = []

    def faults(*called: str) -> None:
        calls.append((called[0], called[1]))
        if called == (verb, moment) and calls.count((verb, moment)) == call:
            raise StoreUnavailable(f"no {verb} today")

    monkeypatch.setattr(crash_recovery, "_WAIT_S", 0.0)
    monkeypatch.setattr(crash_recovery, "_BATCH", 1)
    scene = Scene(3)
    scene.store._faults = faults
    board = tuple(Running(n, job.id, job.fence, 0.0, 90.0) for n, job in enumerate(scene.jobs))
    death = Death(exit_code=None, signal=11, memory_mib=123.0, at=100.0, running=board)
    client, recovery, told = StoreClient("memory://"), CrashRecovery(SystemChance(1)), list[Event]()
    client._store = scene.store
    for kind in ("timed_out", "failed", "released"):
        recovery._bus.subscribe(f"job.{kind}", told.append)

    recovery.begin(client, HELLO, death, cause)
    await recovery.ended(PATIENCE_S)

    assert calls.count((verb, moment)) > call
    assert [scene.counted(job)[0] for job in scene.jobs] == [1, 1, 1]
    assert (len(told), recovery.settled.failed) == (3, 0 if cause is Cause.SHUTDOWN else 3)
    counts = recovery.settled.series[0].outcomes
    page = scene.store.run(scene.store.records.records(PART_KIND, limit=10))
    parts = [decode_part(record.document) for record in page.records]
    assert [each.outcomes for part in parts for each in part.series] == [counts]
    client.close()


@pytest.mark.parametrize("verdict", [Verdict.APPLIED, Verdict.CANCELLED, Verdict.EXPIRED])
@pytest.mark.parametrize("kind", EVERY_STORE)
def test_the_lost_answer_of_a_crash_is_found_in_the_history(
    tmp_path: Path, kind: str, verdict: Verdict
) -> None:
    with store_url_of(kind, tmp_path) as url:
        store = open_store(url)
        soon_us = SystemClock().now_us() + 19 * SECOND_US // 10  # a crash waits for two seconds
        deadline_us = soon_us if verdict is Verdict.EXPIRED else None
        store.run(store.jobs.submit([NewJob("job", "work", b"{}", deadline_us=deadline_us)]))
        [job] = claim(store, 1)
        if verdict is Verdict.CANCELLED:
            store.run(store.jobs.cancel("job"))
        board = (Running(0, job.id, job.fence, 0.0, 200.0),)
        death = Death(exit_code=None, signal=11, memory_mib=1.0, at=100.0, running=board)
        known, again = Recovered(), Recovered()
        recover_jobs(store, HELLO, death, Cause.CRASH, SystemChance(1), so_far=known)

        again.settle(store, WORKER, known.jobs)

        assert [each.verdict for each in known.jobs] == [verdict]
        assert again.jobs == known.jobs
        store.close()


def test_a_crash_that_a_rescuer_was_faster_with_is_not_told_again() -> None:
    scene = Scene(1)
    decided = scene.recover(Cause.CRASH, [(scene.jobs[0], 200.0)])
    late, so_far = Scene(1), Recovered()
    late.lose()

    so_far.settle(late.store, WORKER, decided)

    assert so_far.jobs == []


def test_what_became_of_jobs_is_counted_as_their_worker_would_have_counted_it() -> None:
    stuck, crashed = Scene(3), Scene(2)
    late, in_time, _ahead = stuck.jobs
    both = [
        stuck.recover(Cause.STUCK, [(late, 90.0), (in_time, 101.0)]),
        crashed.recover(Cause.CRASH, [(job, 200.0) for job in crashed.jobs]),
    ]

    counted = [emit_recovered(EventBus(), HELLO, jobs) for jobs in both]

    assert [(each.failed, each.timed_out, each.retried, each.dead) for each in counted] == [
        (1, 1, 0, 1),
        (2, 0, 2, 0),
    ]
