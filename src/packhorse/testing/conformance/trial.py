# SPDX-License-Identifier: MIT
"""A store under test: the store, its clock, one of its runners, and short methods for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

from packhorse.core.clock import SECOND_US
from packhorse.core.job import AttemptRecord, Job, JobRecord, JobStatus, NewJob
from packhorse.core.lifecycle import JobRules, Orphan, rescue
from packhorse.core.settlement import Settlement, SettlementKind, Verdict
from packhorse.stores.plan import Plan
from packhorse.stores.protocol import Store
from packhorse.stores.requests import (
    Claimed,
    ClaimRequest,
    JobFilter,
    QueueSettings,
    Renewal,
    Renewed,
    Submitted,
)
from packhorse.testing.conformance.harness import HarnessFactory, StoreHarness
from packhorse.testing.conformance.samples import (
    ANNA,
    LEASE_US,
    QUEUE,
    TASK,
    TIMEOUT_US,
    new_job,
    settlement_of,
)
from packhorse.testing.virtual_clock import VirtualClock

T = TypeVar("T")

RunnerName = Literal["run", "arun"]
#: Both ways to run a plan; they must give the same answers.
RUNNERS: Final[tuple[RunnerName, ...]] = ("run", "arun")
#: A limit that no example reaches.
EVERYTHING: Final = 10_000


class Trial:
    """One store, with a clock that only the test moves."""

    def __init__(self, harness: StoreHarness, clock: VirtualClock, runner: RunnerName) -> None:
        self.clock = clock
        self.store: Store = harness.open()
        self._harness = harness
        self._runner = runner
        self._loop = asyncio.Runner()
        self._used: set[str] = set()  # ids

    def run(self, plan: Plan[T]) -> T:
        """Run a plan with the runner of this trial."""
        if self._runner == "run":
            return self.store.run(plan)
        return self.play(self.store.arun(plan))

    async def arun(self, plan: Plan[T], store: Store | None = None) -> T:
        """Run a plan inside `play`; the sync runner uses a thread, so that it does not block."""
        chosen = self.store if store is None else store
        if self._runner == "run":
            return await asyncio.to_thread(chosen.run, plan)
        return await chosen.arun(plan)

    def play(self, scenario: Coroutine[Any, Any, T]) -> T:
        """Play a scenario on the trial's event loop."""
        # Four times as fast as `Runner.run`, which changes signal handlers for each scenario.
        return self._loop.get_loop().run_until_complete(scenario)

    def elsewhere(self) -> Store:
        """Return another `Store` object on the same data, as another process has."""
        return self._harness.reopen()

    def close(self) -> None:
        self._harness.close()
        self._loop.close()

    # ------------------------------------------------------------------------------------ time

    def now_us(self) -> int:
        return self.clock.now_us()

    def advance_us(self, span_us: int) -> None:
        self.clock.advance(span_us / SECOND_US)

    def let_lease_expire(self) -> None:
        """Let the time of a whole lease pass, and a little more."""
        self.advance_us(LEASE_US + SECOND_US)

    # ------------------------------------------------------------------------------------ jobs

    def submit(self, *jobs: NewJob) -> tuple[Submitted, ...]:
        """Store jobs, with `ids_are_new` unless an id has been used here before."""
        ids = {job.id for job in jobs}
        new = len(ids) == len(jobs) and ids.isdisjoint(self._used)
        self._used |= ids
        return self.run(self.store.jobs.submit(jobs, ids_are_new=new))

    def ask(
        self,
        worker: str = ANNA,
        *,
        queues: Sequence[str] = (QUEUE,),
        tasks: Sequence[str] = (TASK,),
        limit: int = EVERYTHING,
        quarantine: bool = False,
        allowance_us: int = 0,
        tenants: Sequence[str] = (),
        levels: Mapping[str, int] | None = None,
    ) -> Claimed:
        """Claim and return the whole answer; do not renew the worker's lease."""
        request = ClaimRequest(
            worker=worker,
            queues=tuple(queues),
            tasks=tuple(tasks),
            limit=limit,
            default_timeout_us=TIMEOUT_US,
            quarantine=quarantine,
            allowance_us=allowance_us,
            tenants=tuple(tenants),
            levels=dict(levels or {}),
        )
        return self.run(self.store.jobs.claim(request))

    def claim(self, worker: str = ANNA, **request: Any) -> tuple[Job, ...]:
        """Renew the worker's lease, claim, and return the jobs."""
        self.renew(worker)
        return self.ask(worker, **request).jobs

    def take(self, job: NewJob | None = None, *, worker: str = ANNA) -> Job:
        """Submit a job that is due, and have this worker claim it."""
        wanted = new_job() if job is None else job
        self.submit(wanted)
        return self.claim_only(worker, queues=(wanted.queue,), tasks=(wanted.task,))

    def claim_only(self, worker: str = ANNA, **request: Any) -> Job:
        """Claim the one job there is."""
        (claimed,) = self.claim(worker, **request)
        return claimed

    def claim_any(self, worker: str = ANNA) -> Job:
        """Claim the one job there is, suspect or not."""
        self.renew(worker)
        (claimed,) = self.ask(worker).jobs or self.ask(worker, quarantine=True).jobs
        return claimed

    def settle(self, *settlements: Settlement) -> tuple[Verdict, ...]:
        return self.run(self.store.jobs.settle(settlements))

    def end(
        self, job: Job, kind: SettlementKind = SettlementKind.COMPLETED, **limits: Any
    ) -> Verdict:
        """Settle a job as `lifecycle` decides for an attempt that ended like this."""
        (verdict,) = self.settle(settlement_of(kind, job, JobRules(**limits)))
        return verdict

    def finish(self, job: NewJob, kind: SettlementKind = SettlementKind.COMPLETED) -> Job:
        """Submit, claim and settle a job."""
        taken = self.take(job)
        assert self.end(taken, kind) is Verdict.APPLIED
        return taken

    # ---------------------------------------------------------------------------------- leases

    def renew(self, worker: str = ANNA, **details: Any) -> Renewed:
        details.setdefault("lease_us", LEASE_US)
        return self.run(self.store.leases.renew(Renewal(worker=worker, **details)))

    def orphans(self, *workers: str) -> dict[str, Orphan]:
        found = self.run(self.store.leases.orphans(workers, limit=EVERYTHING))
        return {orphan.job_id: orphan for orphan in found}

    def rescue(self, *workers: str) -> dict[str, Verdict]:
        """Rescue as a rescuer does once it is sure that these workers are gone."""
        found = self.orphans(*workers)
        # As if each had been lost before, so that it becomes a suspect.
        rescues = [msgspec.structs.replace(rescue(one), suspect=True) for one in found.values()]
        verdicts = self.settle(*rescues)
        return dict(zip(found, verdicts, strict=True))

    def make_suspect(self, job: NewJob) -> None:
        """Submit a job, lose it with its worker, and let it wait until it is ready again."""
        self.take(job, worker="lost")
        self.let_lease_expire()
        assert self.rescue("lost") == {job.id: Verdict.APPLIED}
        self.advance_us(2 * SECOND_US)

    def lose_in_reverse(self, earlier: NewJob, later: NewJob) -> None:
        """Submit two jobs and lose both, the later one first, so that it is due again first."""
        for job, lease_us in ((earlier, 2 * LEASE_US), (later, LEASE_US)):
            self.submit(job)
            self.renew(job.id, lease_us=lease_us)
            assert self.ask(job.id).jobs
        for job in (later, earlier):
            self.advance_us(LEASE_US)
            assert self.rescue(job.id) == {job.id: Verdict.APPLIED}
        self.advance_us(2 * SECOND_US)

    # ---------------------------------------------------------------------------------- queues

    def declare(self, *queues: QueueSettings) -> tuple[QueueSettings | None, ...]:
        return self.run(self.store.queues.declare(queues))

    def pause(self, queue: str = QUEUE, *, paused: bool = True) -> bool:
        return self.run(self.store.queues.pause(queue, paused=paused))

    # ----------------------------------------------------------------------------- inspection

    def find(self, job_id: str) -> JobRecord | None:
        return self.run(self.store.inspection.job(job_id))

    def record(self, job_id: str) -> JobRecord:
        found = self.find(job_id)
        assert found is not None, f"job {job_id} is not in the store"
        return found

    def status(self, job_id: str) -> JobStatus:
        return self.record(job_id).status

    def history(self, job_id: str) -> tuple[AttemptRecord, ...]:
        return self.run(self.store.inspection.history(job_id))

    def picture(self, job_id: str) -> tuple[JobRecord | None, tuple[AttemptRecord, ...]]:
        """Return all observable state of a job, to check whether it changed."""
        return self.find(job_id), self.history(job_id)

    def search(self, **chosen: Any) -> list[str]:
        """Return the ids of matching jobs, newest first."""
        page = self.run(self.store.inspection.search(JobFilter(**chosen), limit=EVERYTHING))
        return [record.id for record in page.jobs]


class Trials:
    """Opens any number of empty stores in one test, each with its own folder and clock."""

    def __init__(self, make: HarnessFactory, folder: Path) -> None:
        self._make = make
        self._folder = folder
        self._opened = 0

    @contextmanager
    def fresh(
        self, runner: RunnerName = "run", *, clock: VirtualClock | None = None
    ) -> Iterator[Trial]:
        self._opened += 1
        folder = self._folder / f"store-{self._opened}"
        folder.mkdir()
        shared = VirtualClock() if clock is None else clock
        trial = Trial(self._make(folder, shared), shared, runner)
        try:
            yield trial
        finally:
            trial.close()
