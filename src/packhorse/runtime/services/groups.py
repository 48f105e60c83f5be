# SPDX-License-Identifier: MIT
"""Fold the journal: apply the ends of member jobs to their batch or workflow.

Every worker looks, the one on duty folds, and the journal decides: a fold names the lines that it
removes, so that each line is counted once. A `Folding` says what the lines of one kind of group
change; this service finds the groups, and folds again where another worker was faster.

A group that cannot be folded (another release wrote its record, say) is reported and rests for a
while, longer each time; the others go on. If resting groups and groups of unknown kinds fill the
list of groups, the service reads a longer list.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from packhorse.core.generators import adrive
from packhorse.core.job import NewJob
from packhorse.core.policies.journal import LINES_MAX, Group, JournalLine
from packhorse.core.policies.records import RecordChange
from packhorse.runtime.services.service import (
    OFF_DUTY_S,
    STORE_AWAY,
    Duty,
    Service,
    ServiceContext,
)
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store
from packhorse.stores.records import Changed

JOURNAL_TOPIC: Final = "journal"
#: Between two rounds, so that lines which come one by one are folded together.
_TOGETHER_S: Final = 0.02
#: Groups read in one round; more where all of them rest or are of unknown kinds.
_GROUPS: Final = (100, 1_000, 10_000)
#: The name under which the store's health counts failed folds.
_FOLD: Final = "fold"
#: How long a group rests that could not be folded; doubled each time, up to the maximum.
_REST_S: Final = 2.0
_REST_S_MAX: Final = 60.0
_LOG: Final = logging.getLogger("packhorse.worker")
#: Tries of a fold that conflicts with another one.
_TRIES: Final = 10
#: Folds of one group in a row, before the other groups.
_FOLDS: Final = 10
#: Rounds that a burst folds before it looks for jobs again.
_ROUNDS: Final = 100


class Fold(NamedTuple):
    """What lines of a group change: written by one `fold` of the store, all or nothing."""

    line_ids: tuple[int, ...]
    changes: tuple[RecordChange, ...] = ()
    jobs: tuple[NewJob, ...] = ()
    note: Any = None  #: passed on to `Folding.folded`

    @property
    def does_something(self) -> bool:
        """Whether it has anything to write."""
        return bool(self.line_ids or self.changes or self.jobs)


class Folding(Protocol):
    """What the lines of one kind of group change."""

    @property
    def kind(self) -> str:
        """The kind of its groups: `batch`, `workflow`."""
        ...

    def fold(self, store: Store, group: Group, lines: Sequence[JournalLine]) -> Asking[Fold]:
        """Yield the plans of reads, and return what to write.

        It may leave lines for the next fold. It is called again if another process has changed
        what it read; the changes it returns must check the versions that it read.
        """
        ...

    def folded(self, store: Store, group: Group, fold: Fold, changed: Changed) -> Asking[None]:
        """Follow up on a fold that was written; `changed.jobs` says which jobs were refused.

        It yields plans; the process may die before they have run.
        """
        ...


class _Rest(NamedTuple):
    """How long a group that could not be folded rests."""

    until: float
    next_s: float  #: how long it rests if it fails again


class _Done(NamedTuple):
    """What a round did; if either is true, the next round may find other groups."""

    moved: bool  #: it folded lines
    failed: bool  #: it could not fold a group, which rests


class Groups(Service):
    """Fold the lines of groups whose kind has a `Folding`."""

    name = "groups"
    interval_s = 5.0

    def __init__(
        self,
        context: ServiceContext,
        foldings: Sequence[Folding],
        *,
        failed: Callable[[str, BaseException], None],
        worked: Callable[[str], None],
    ) -> None:
        super().__init__(context)
        self._failed = failed
        self._worked = worked
        self._resting: dict[Group, _Rest] = {}  # only groups with lines
        self._duty = Duty(context, self.name)
        self._foldings = {each.kind: each for each in foldings}
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Look now: there may be lines."""
        self._woken.set()

    async def rest(self, wait_s: float) -> None:
        """Wait this long, or until there may be lines."""
        try:
            async with asyncio.timeout(wait_s):
                await self._woken.wait()
        except TimeoutError:
            return
        await asyncio.sleep(_TOGETHER_S)

    async def run_once(self) -> float:
        """Fold what is there if this worker is on duty."""
        self._woken.clear()
        groups = await self._groups()
        if not groups:
            return self._wait_s()
        if not await self._duty.is_mine():
            self._forget(self._resting.copy())  # the worker on duty reports them
            return self._wait_s(OFF_DUTY_S)
        done = await self._fold_groups(groups)
        return _TOGETHER_S if any(done) else self._wait_s(OFF_DUTY_S)

    async def fold_all(self) -> bool:
        """Fold all that is there, on duty or not, for a burst; return whether there was any."""
        moved = False
        for _ in range(_ROUNDS):
            done = await self._fold_groups(await self._groups())
            moved |= done.moved
            if not any(done):
                break
        return moved

    async def _groups(self) -> tuple[Group, ...]:
        """Read the groups to fold, the one with the oldest line first."""
        journal, now = self._store.journal, self._monotonic()
        found: tuple[Group, ...] = ()
        wanted: tuple[Group, ...] = ()
        for limit in _GROUPS:
            found = await self._store.arun(journal.journal_groups(limit=limit))
            wanted = tuple(each for each in found if self._is_wanted(each, now))
            if wanted or not found:
                break
        self._forget(set(self._resting).difference(found))
        return wanted

    def _is_wanted(self, group: Group, now: float) -> bool:
        if group.kind not in self._foldings:
            return False
        rest = self._resting.get(group)
        return rest is None or rest.until <= now

    async def _fold_groups(self, groups: Sequence[Group]) -> _Done:
        moved = failed = False
        for group in groups:
            try:
                moved |= await self._fold_much(group)
            except STORE_AWAY:
                raise
            except Exception as error:  # noqa: BLE001 - reported, and tried again later
                self._rest(group, error)
                failed = True
            else:
                self._forget([group])
        return _Done(moved, failed)

    def _rest(self, group: Group, error: Exception) -> None:
        before = self._resting.get(group)
        is_first = not self._resting
        rest_s = _REST_S if before is None else before.next_s
        until = self._monotonic() + rest_s
        self._resting[group] = _Rest(until, min(2 * rest_s, _REST_S_MAX))
        self._failed(_FOLD, error)
        if before is None:
            text = "%s %r cannot be folded, and is tried again from time to time: %r"
            shown = error if is_first else None
            _LOG.warning(text, group.kind, group.key, error, exc_info=shown)

    def _forget(self, groups: Iterable[Group]) -> None:
        """End the rest of these groups."""
        for group in groups:
            if self._resting.pop(group, None) is not None and not self._resting:
                self._worked(_FOLD)

    async def _fold_much(self, group: Group) -> bool:
        """Fold the lines of a group, up to a bound; return whether there were any."""
        moved = False
        for _ in range(_FOLDS):
            lines = await self._fold_group(group)
            moved |= lines > 0
            if lines < LINES_MAX:
                break
        return moved

    async def _fold_group(self, group: Group) -> int:
        """Fold some lines of a group once; return how many."""
        folding, store = self._foldings[group.kind], self._store
        for _ in range(_TRIES):
            lines = await store.arun(store.journal.journal(group, limit=LINES_MAX))
            if not lines:
                return 0
            fold = await adrive(folding.fold(store, group, lines), store.arun)
            if not fold.does_something:
                return 0
            plan = store.journal.fold(group, fold.line_ids, fold.changes, jobs=fold.jobs)
            changed = await store.arun(plan)
            if changed.applied:
                await adrive(folding.folded(store, group, fold, changed), store.arun)
                return max(1, len(fold.line_ids))  # a fold without lines counts as one
        return 0  # others fold it all the time: leave it to them, or to the next round
