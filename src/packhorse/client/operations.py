# SPDX-License-Identifier: MIT
"""One thing done to every job that a filter means, in steps that workers take: an operation.

What it is to do, how far it is, and the jobs that are worked on right now stand in one record. So
it outlives the page that began it and the worker that takes its steps, and can be stopped and
resumed. The jobs of a step are written down before they are touched: a step that was interrupted
is taken again, and passes over every job that has changed since the operation began.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import msgspec

from packhorse.core.clock import SECOND_US, new_id
from packhorse.core.job import LOOK_MAX, TERMINAL, UNFINISHED, JobRecord, JobStatus, RateRule
from packhorse.core.job_info import JobInfo
from packhorse.core.policies.records import Put, Record, RecordId
from packhorse.errors import ConfigError, PackhorseError
from packhorse.stores.protocol import Store
from packhorse.stores.records import RecordPage
from packhorse.stores.requests import JobFilter, Page

OPERATION_KIND: Final = "operation"
#: Jobs that one step changes.
STEP_MAX: Final = 100
#: Jobs that may be named instead of a filter.
SELECTED_MAX: Final = 500
#: Jobs that are counted before an operation begins; of more it is known that there are more.
COUNTED_MAX: Final = 2_000
_PAGE: Final = 1_000
#: How long an operation that is over is shown.
_KEPT_US: Final = 30 * 24 * 3_600 * SECOND_US
_TRIES: Final = 10


class OperationNotFound(PackhorseError):
    """There is no such operation, or it is another tenant's."""

    code = "OPERATION_NOT_FOUND"


class OperationAction(StrEnum):
    """What is done to each job."""

    CANCEL = "cancel"
    RETRY = "retry"  #: finished ones run again, those that wait for a retry run now
    REDRIVE = "redrive"  #: dead letters run again
    PURGE = "purge"  #: finished ones are removed


class OperationState(StrEnum):
    """How it stands."""

    RUNNING = "running"
    STOPPED = "stopped"
    ENDED = "ended"


_AGAIN: Final = (JobStatus.DEAD, JobStatus.CANCELLED, JobStatus.FAILED, JobStatus.TIMEOUT)
#: The statuses that each action is about where none is asked for, and those that may be.
_MEANT: Final[Mapping[OperationAction, tuple[JobStatus, ...]]] = MappingProxyType(
    {
        OperationAction.CANCEL: UNFINISHED,
        OperationAction.RETRY: _AGAIN,
        OperationAction.REDRIVE: (JobStatus.DEAD,),
        OperationAction.PURGE: (JobStatus.COMPLETED, JobStatus.CANCELLED),
    }
)
_POSSIBLE: Final[Mapping[OperationAction, frozenset[JobStatus]]] = MappingProxyType(
    {
        OperationAction.CANCEL: frozenset(UNFINISHED),
        OperationAction.RETRY: frozenset({*_AGAIN, JobStatus.COMPLETED}),
        OperationAction.REDRIVE: frozenset({JobStatus.DEAD}),
        OperationAction.PURGE: TERMINAL,
    }
)


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is to be done, and how far it is."""

    id: str
    action: OperationAction
    chosen: JobFilter
    by: str  #: who began it
    started_us: int
    state: OperationState = OperationState.RUNNING
    error: str | None = None  #: only dead letters that met this error
    place: str | None = None  #: at this place
    rate: RateRule | None = None  #: how many in which time, at most
    reset_budget: bool = False
    matched: int = 0  #: counted before it began
    more: bool = False  #: there were more
    done: int = 0  #: jobs that are as it wanted them to be
    refused: int = 0  #: those that could not be changed
    page: tuple[str, ...] = ()  #: the jobs that are worked on
    after: str | None = None  #: where the next page begins
    last: bool = False  #: there is none
    ended_us: int | None = None
    stopped_by: str | None = None

    @property
    def step(self) -> int:
        """How many jobs one step changes: with a rate, those of about a second."""
        if self.rate is None:
            return STEP_MAX
        return max(1, min(STEP_MAX, self.rate.max * SECOND_US // self.rate.window_us))

    def due_us(self, number: int, now_us: int) -> int:
        """When the step after one that changed so many jobs may be taken."""
        if self.rate is None:
            return now_us
        return now_us + number * self.rate.window_us // self.rate.max


class Matched(msgspec.Struct, frozen=True):
    """How many jobs an operation would be about."""

    matched: int
    more: bool  #: and there are more


_read: Final = msgspec.json.Decoder(Operation).decode


def operation_of(record: Record) -> Operation:
    """The operation that a record describes."""
    return _read(record.document)


def operation_put(operation: Operation, version: int, tenant: str, due_us: int) -> Put:
    """How an operation is written down; one that is running can be found by when it is due."""
    running = operation.state is OperationState.RUNNING
    ended = operation.state is OperationState.ENDED
    return Put(
        RecordId(OPERATION_KIND, tenant, operation.id),
        msgspec.json.encode(operation),
        version,
        order=due_us if running else None,
        keep_us=_KEPT_US if ended else None,
    )


class Operations:
    """The operations of one tenant, or of all."""

    def __init__(self, store: Store, tenant: str | None = None) -> None:
        self._store = store
        self._tenant = tenant

    async def amatch(
        self, action: OperationAction, chosen: JobFilter, error: str | None, place: str | None
    ) -> Matched:
        """Count what an operation would be about, up to a bound, and change nothing."""
        meant = self._meant(action, chosen)
        found, after = 0, None
        for _ in range(COUNTED_MAX // _PAGE):
            search = self._store.inspection.search(meant, limit=_PAGE, after=after, most=LOOK_MAX)
            page: Page = await self._store.arun(search)
            found += sum(has_end(job, error, place) for job in page.jobs)
            after = page.after
            if after is None or page.stopped_after is not None:
                break
        return Matched(found, after is not None)

    async def abegin(
        self,
        action: OperationAction,
        chosen: JobFilter,
        *,
        by: str,
        selected: tuple[str, ...] = (),
        **more: Any,
    ) -> Operation:
        """Write an operation down; workers do it. `selected`: these jobs, and no others."""
        meant = self._meant(action, chosen)
        now_us = await self._now_us()
        if len(selected) > SELECTED_MAX:
            raise ConfigError(f"name at most {SELECTED_MAX} jobs, or give a filter")
        if action is OperationAction.PURGE and (
            selected or more.get("error") or more.get("place") or more.get("rate")
        ):
            raise ConfigError("a purge takes a filter, without jobs, error, place and rate")
        before_us = min(now_us, meant.created_before_us or now_us)
        meant = msgspec.structs.replace(meant, created_before_us=before_us)
        matched = Matched(len(selected), more=False)
        if not selected:
            matched = await self.amatch(action, meant, more.get("error"), more.get("place"))
        begun = Operation(
            **{**more, "id": new_id(), "action": action, "chosen": meant, "by": by},
            started_us=now_us,
            matched=matched.matched,
            more=matched.more,
            page=tuple(dict.fromkeys(selected)),
            last=bool(selected),
        )
        put = operation_put(begun, 0, self._tenant or "", now_us)
        await self._store.arun(self._store.records.change((put,)))
        return begun

    async def aall(self) -> list[Operation]:
        """Every operation that runs, was stopped, or ended not long ago, the newest first."""
        page = await self._page()
        found = [operation_of(record) for record in page.records]
        return sorted(filter(self._is_own, found), key=lambda one: -one.started_us)

    async def aget(self, operation_id: str) -> Operation:
        """One operation."""
        return operation_of(await self._record(operation_id))

    async def astop(self, operation_id: str, *, by: str) -> Operation:
        """Take no further step; what a step under way does is done."""
        return await self._changed(operation_id, OperationState.STOPPED, by)

    async def aresume(self, operation_id: str) -> Operation:
        """Go on where it was stopped."""
        return await self._changed(operation_id, OperationState.RUNNING, None)

    async def _changed(self, operation_id: str, state: OperationState, by: str | None) -> Operation:
        for _ in range(_TRIES):
            record = await self._record(operation_id)
            known = operation_of(record)
            if known.state in (state, OperationState.ENDED):
                return known
            changed = msgspec.structs.replace(known, state=state, stopped_by=by)
            put = operation_put(changed, record.version, record.id.tenant, await self._now_us())
            if (await self._store.arun(self._store.records.change((put,)))).applied:
                return changed
        raise ConfigError(f"operation {operation_id} is changed all the time; try again")

    def _meant(self, action: OperationAction, chosen: JobFilter) -> JobFilter:
        """The filter, narrowed to this tenant and to statuses that the action is about."""
        statuses = chosen.statuses or _MEANT[action]
        if not _POSSIBLE[action].issuperset(statuses):
            words = ", ".join(sorted(_POSSIBLE[action]))
            raise ConfigError(f"{action} is for jobs that are {words}; ask for those")
        if self._tenant is not None:
            chosen = msgspec.structs.replace(chosen, tenant=self._tenant)
        return msgspec.structs.replace(chosen, statuses=statuses)

    async def _record(self, operation_id: str) -> Record:
        try:
            named = RecordId(OPERATION_KIND, self._tenant or "", operation_id)
            record: Record | None = await self._store.arun(self._store.records.record(named))
        except ConfigError:  # that cannot be an id
            record = None
        if record is None and self._tenant is None:
            found = (await self._page()).records
            record = next((one for one in found if one.id.key == operation_id), None)
        if record is None or not self._is_own(operation_of(record)):
            raise OperationNotFound(f"there is no operation {operation_id}; see /operations")
        return record

    def _is_own(self, operation: Operation) -> bool:
        return self._tenant in (None, operation.chosen.tenant)

    async def _page(self) -> RecordPage:
        records = self._store.records.records(OPERATION_KIND, tenant=self._tenant, limit=_PAGE)
        page: RecordPage = await self._store.arun(records)
        return page

    async def _now_us(self) -> int:
        return (await self._store.arun(self._store.records.records(OPERATION_KIND, limit=1))).now_us


# ---------------------------------------------------------------------------- the end of dead jobs

_FRAME: Final = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')
#: Of an end that came from no place, or has no error; a form cannot send an empty field.
_NONE: Final = "-"


def has_end(job: JobInfo | JobRecord, error: str | None, place: str | None) -> bool:
    """Whether a job met this error at this place; None: whichever."""
    if error is None and place is None:
        return True
    met, where = end_of(job)
    return error in (None, met) and place in (None, where)


def end_of(job: JobInfo | JobRecord) -> tuple[str, str]:
    """The error a dead job met, or the reason it is dead, and the place that came from."""
    if job.error is None:
        return str(job.dead_reason or _NONE), _NONE
    return job.error.type or _NONE, _place(job.error.stack or "")


def _place(stack: str) -> str:
    """The last frame of a stack: where the exception came from."""
    frames = list(_FRAME.finditer(stack))
    if not frames:
        return _NONE
    file = frames[-1]["file"].rpartition("/")[2]
    return f"{file}:{frames[-1]['line']} in {frames[-1]['name']}"
