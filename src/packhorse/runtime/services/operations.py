# SPDX-License-Identifier: MIT
"""Run operations over many jobs in steps: every worker looks, the one on duty takes the steps.

A step that two workers take at once, or that one takes again after the other died, changes no job
twice: the worker reads each job just before, and only counts one that has changed since the
operation began.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from packhorse.client.operations import (
    OPERATION_KIND,
    Operation,
    OperationAction,
    OperationState,
    has_end,
    operation_of,
    operation_put,
)
from packhorse.client.replies import forgotten
from packhorse.core.job import LOOK_MAX, JobStatus
from packhorse.core.lifecycle import CancelAnswer
from packhorse.core.policies.records import Record
from packhorse.events import JobCancelled, JobCancelling, cancelled_events
from packhorse.runtime.services.service import (
    OFF_DUTY_S,
    Duty,
    Service,
    ServiceContext,
    due_records,
    text_of_id,
)
from packhorse.stores.requests import Deleted, Page, RedriveAnswer

#: Operations that run at once; each takes one step in turn.
_AT_ONCE: Final = 20
#: Jobs that are found and noted in one step; later steps change them.
_FOUND: Final = 500


class OperationSteps(Service):
    """Take the steps of every running operation."""

    name = "operations"
    interval_s = 2.0

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context)
        self._duty = Duty(context, self.name)

    async def run_once(self) -> float:
        """Take one step of each operation that is due."""
        page = await self._page(OPERATION_KIND, limit=_AT_ONCE, by_order=True)
        due = due_records(page)
        if not due:
            return self._until_due_s(page)
        if not await self._duty.is_mine():
            return self._wait_s(OFF_DUTY_S)
        stepped = await self._with_each(
            due, text_of_id, lambda record: self._step(record, page.now_us)
        )
        return 0.0 if stepped else self._wait_s()

    async def _step(self, record: Record, now_us: int) -> None:
        known = operation_of(record)
        if known.action is OperationAction.PURGE:
            await self._note(record, await self._purged(known, now_us), now_us)
        elif known.page:
            due_us = known.due_us(len(known.page[: known.step]), now_us)
            await self._note(record, await self._worked(known, now_us), due_us)
        else:
            await self._note(record, await self._found(known, now_us), now_us)

    async def _found(self, known: Operation, now_us: int) -> Operation:
        """Find the next jobs, and note them before any of them is changed."""
        if known.last:
            return _ended(known, now_us)
        page: Page = await self._store.arun(
            self._store.inspection.search(
                known.chosen, limit=_FOUND, after=known.after, most=LOOK_MAX
            )
        )
        found = [job.id for job in page.jobs if has_end(job, known.error, known.place)]
        last = page.after is None
        changed = msgspec.structs.replace(known, page=tuple(found), after=page.after, last=last)
        return changed if found or not last else _ended(changed, now_us)

    async def _worked(self, known: Operation, now_us: int) -> Operation:
        """Change some of the jobs that were found."""
        part, rest = known.page[: known.step], known.page[known.step :]
        change = self._cancel if known.action is OperationAction.CANCEL else self._redrive
        answers = await change(known, part)
        changed = msgspec.structs.replace(
            known,
            page=rest,
            done=known.done + answers["done"],
            refused=known.refused + answers["refused"],
        )
        return changed if rest or not known.last else _ended(changed, now_us)

    async def _purged(self, known: Operation, now_us: int) -> Operation:
        """Remove some jobs; those that end behind the place it has come to are kept."""
        delete = self._store.jobs.delete(
            known.chosen, limit=known.step, after=known.after, most=LOOK_MAX
        )
        answer: Deleted = await self._store.arun(delete)
        done = known.done + answer.removed
        changed = msgspec.structs.replace(known, done=done, after=answer.after)
        return _ended(changed, now_us) if answer.after is None else changed

    async def _cancel(self, known: Operation, job_ids: Sequence[str]) -> Counter[str]:
        answers: Counter[str] = Counter()
        for job_id in job_ids:
            cancel = self._store.jobs.cancel(job_id, tenant=known.chosen.tenant)
            answer = await self._store.arun(cancel)
            done = answer in (CancelAnswer.CANCELLED, CancelAnswer.FLAGGED)
            if answer is not CancelAnswer.FLAGGED:
                done = await self._is_cancelled(job_id, known, reported=not done) or done
            answers["done" if done else "refused"] += 1
        return answers

    async def _is_cancelled(self, job_id: str, known: Operation, *, reported: bool) -> bool:
        """Return whether a job was cancelled since the operation began; emit its events if due."""
        if not reported and not (self._bus.wants(JobCancelling) or self._bus.wants(JobCancelled)):
            return True
        record = await self._store.arun(self._store.inspection.job(job_id))
        if record is None or record.status is not JobStatus.CANCELLED:
            return False
        if not reported:
            for event in cancelled_events(record, worker=self._worker):
                self._bus.emit(event)
        return record.updated_us >= known.started_us

    async def _redrive(self, known: Operation, job_ids: Sequence[str]) -> Counter[str]:
        answers: Counter[str] = Counter()
        untouched = []
        for job_id in job_ids:
            look = self._store.inspection.job(job_id, tenant=known.chosen.tenant)
            record = await self._store.arun(look)
            if record is None:
                answers["refused"] += 1
            elif record.updated_us >= known.started_us:  # by a step that was interrupted, or others
                answers["done"] += 1
            elif record.status not in known.chosen.statuses:
                answers["refused"] += 1
            else:
                untouched.append(job_id)
        if untouched:
            forget = forgotten(reset_budget=known.reset_budget)
            redrive = self._store.jobs.redrive(untouched, tenant=known.chosen.tenant, forget=forget)
            for answer in await self._store.arun(redrive):
                done = answer is RedriveAnswer.REDRIVEN
                answers["done" if done else "refused"] += 1
        return answers

    async def _note(self, record: Record, changed: Operation, due_us: int) -> None:
        """Write how far an operation is; one that was stopped meanwhile stays stopped."""
        put = operation_put(changed, record.version, record.id.tenant, due_us)
        if (await self._change(put)).applied:
            return
        now = await self._record(record.id)
        if now is None:
            return
        known, before = operation_of(now), operation_of(record)
        same = (known.page, known.after, known.done) == (before.page, before.after, before.done)
        if same:
            over = changed.state is OperationState.ENDED
            state = changed.state if over else known.state
            both = msgspec.structs.replace(changed, state=state, stopped_by=known.stopped_by)
            again = operation_put(both, now.version, now.id.tenant, due_us)
            await self._change(again)


def _ended(known: Operation, now_us: int) -> Operation:
    return msgspec.structs.replace(known, state=OperationState.ENDED, ended_us=now_us)
