# SPDX-License-Identifier: MIT
"""Complete a job in a transaction of its handler's own.

    check ──▶ begin ──▶ the handler's rows ──▶ commit: completion and COMMIT ──▶ attempt.settled
                                                   └─ answer lost ──▶ read whether it is completed

What is written is the settlement that a returned result would come to; once it is committed the
worker has nothing left to write about the job.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from packhorse.core.job import JobRecord, JobStatus
from packhorse.core.lifecycle import settle
from packhorse.core.outcome import Succeeded
from packhorse.core.policies.attachments import Attaching, Attachments, fits
from packhorse.core.settlement import Settlement, Verdict
from packhorse.errors import StoreUnavailable, TransactionRefused, UsageError
from packhorse.runtime.worker.attaching import logged_by
from packhorse.runtime.worker.attempt import Attempt, Stage
from packhorse.runtime.worker.executor import ResultRefused, judged
from packhorse.runtime.worker.handlers import rules_of, too_large
from packhorse.runtime.worker.outcomes import oversized
from packhorse.stores.plan import Steps
from packhorse.stores.requests import ProgressNote
from packhorse.stores.transactions import OpenTransaction

if TYPE_CHECKING:
    from packhorse.runtime.worker.contexts import ContextFactory

#: Waits between two looks at a store that cannot be reached, after the answer to a commit was lost.
_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 1.0


class WorkerTransaction:
    """See `HostTransaction`."""

    def __init__(self, attempt: Attempt, worker: ContextFactory) -> None:
        store = worker.store
        if store.transactions is None:
            raise UsageError(
                f"ctx.transaction() needs jobs and rows in one database, and {store.label} has no "
                "rows of yours: keep jobs in PostgreSQL or SQLite, or use ctx.step() and "
                "ctx.idempotency_key()"
            )
        self._transactions = store.transactions
        self._store = store
        self._attempt = attempt
        self._worker = worker
        self._open: OpenTransaction | None = None

    @property
    def connection(self) -> Any:
        return self._begun.connection

    @property
    def exclusive(self) -> bool:
        return self._transactions.exclusive

    @property
    def committed(self) -> bool:
        return self._attempt.settled is not None

    @property
    def _begun(self) -> OpenTransaction:
        assert self._open is not None  # noqa: S101 - the block is entered first
        return self._open

    def check(self, result: Any) -> Settlement:
        attempt = self._attempt
        outcome = judged(attempt.handler, result, job_id=attempt.job.id)
        if (problem := too_large(attempt.handler, outcome)) is not None:
            outcome = oversized(problem)
        if not isinstance(outcome, Succeeded):
            error = getattr(outcome, "error", None)
            told = type(outcome).__name__ if error is None else error.message
            raise ResultRefused(
                f"tx.complete() was given what task {attempt.handler.name} does not declare as its "
                f"result: {told}",
                outcome,
            )
        return settle(attempt.job, outcome, rules_of(attempt.job, attempt.handler), roll=0.0)

    def begin(self) -> None:
        self._require_wanted()
        self._open = self._transactions.begin(self._worker.lease_s)

    async def abegin(self) -> None:
        self._require_wanted()
        self._open = await self._transactions.abegin(self._worker.lease_s)

    def roll_back(self) -> None:
        self._begun.roll_back()

    async def aroll_back(self) -> None:
        await self._begun.aroll_back()

    def commit(self, completion: Settlement) -> None:
        try:
            self._require_wanted()
        except TransactionRefused:
            self._begun.roll_back()
            raise
        try:
            applied = self._begun.finish(self._last_steps(completion))
        except StoreUnavailable as error:
            if not (error.maybe_stored and self._find_completed()):
                raise
            applied = True
        self._committed(completion, applied=applied)

    async def acommit(self, completion: Settlement) -> None:
        try:
            self._require_wanted()
        except TransactionRefused:
            await self._begun.aroll_back()
            raise
        # Run to the end from here, so that a cancel cannot hide whether it committed.
        ending = asyncio.ensure_future(self._afinish(completion))
        cancelled: asyncio.CancelledError | None = None
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError as error:
                cancelled = error
            except Exception:  # noqa: BLE001 - raised below
                break
        try:
            self._committed(completion, applied=ending.result())
            if cancelled is not None:
                raise cancelled
        finally:  # what is raised holds this frame: a cycle that would keep it alive
            del ending, cancelled

    async def _afinish(self, completion: Settlement) -> bool:
        try:
            return await self._begun.afinish(self._last_steps(completion))
        except StoreUnavailable as error:
            if not (error.maybe_stored and await self._afind_completed()):
                raise
            return True

    def _require_wanted(self) -> None:
        """Refuse an attempt that the worker is ending: it is late or cancelled."""
        attempt = self._attempt
        if attempt.ending is not None or attempt.stage is not Stage.RUNNING:
            raise _refused(attempt, "its attempt was told to stop, or is over")

    def _last_steps(self, completion: Settlement) -> Callable[[], Steps[bool]]:
        """Return the last steps of the transaction: progress, log lines and the completion."""
        jobs, job = self._store.jobs, self._attempt.job
        said = self._worker.progress.take_last(self._attempt)
        notes = [] if said is None else [ProgressNote(job.id, job.fence, said)]
        noted, plan = jobs.note_progress(notes), jobs.settle([completion])
        logged = logged_by(self._attempt, self._worker.redact)

        def steps() -> Steps[bool]:
            if notes:
                yield from noted.steps()
            if logged is not None:
                yield from self._keep_lines(logged)
            [verdict] = yield from plan.steps()
            return verdict is Verdict.APPLIED

        return steps

    def _keep_lines(self, logged: Attaching) -> Steps[None]:
        """Keep log lines if there is room; never roll back because of them."""
        store = self._store.attachments
        kept: Attachments | None = yield from store.attachments(logged.job_id).steps()
        everything = [*(kept.everything if kept else ()), *logged.values.values()]
        if fits(len(everything), sum(map(len, everything))):
            yield from store.attach([logged]).steps()

    def _committed(self, completion: Settlement, *, applied: bool) -> None:
        if not applied:
            raise _refused(self._attempt, "it was cancelled, or another worker holds it by now")
        self._attempt.settled = completion

    # ---------------------------------------------------------------------------- a lost answer

    def _find_completed(self) -> bool:
        """Read whether a commit whose answer was lost has happened; never write again."""
        look, pause_s = self._store.inspection.job(self._attempt.job.id), _PAUSE_S
        while True:
            try:
                return self._is_completed(self._store.run(look))
            except StoreUnavailable:
                if self._worker.lease.lost_since(self._attempt.epoch):
                    raise
            threading.Event().wait(pause_s)
            pause_s = min(_PAUSE_S_MAX, 2 * pause_s)

    async def _afind_completed(self) -> bool:
        look, pause_s = self._store.inspection.job(self._attempt.job.id), _PAUSE_S
        while True:
            try:
                return self._is_completed(await self._store.arun(look))
            except StoreUnavailable:
                if self._worker.lease.lost_since(self._attempt.epoch):
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(_PAUSE_S_MAX, 2 * pause_s)

    def _is_completed(self, record: JobRecord | None) -> bool:
        """Under this fence no other could have completed it."""
        if record is None or record.status is not JobStatus.COMPLETED:
            return False
        return record.fence == self._attempt.job.fence


def _refused(attempt: Attempt, why: str) -> TransactionRefused:
    job_id = attempt.job.id
    return TransactionRefused(
        f"the transaction of job {job_id} was rolled back: {why}", job_id=job_id
    )
