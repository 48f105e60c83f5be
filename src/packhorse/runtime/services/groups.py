# SPDX-License-Identifier: MIT
"""Folds the journal: what the ends of members come to for their batch or workflow.

Every worker looks, one at a time is on duty, and the journal decides: a fold names the lines that
it removes, so that each is counted once. What a kind of group makes of its lines is
its `Folding`; this service finds the groups, and asks again where another one was faster.

A group that cannot be folded (another release wrote its record, say) is told as trouble and rests
for a while, longer each time; the others go on. Neither such groups nor those of a kind that
is not known here hide the others: where they fill what is looked at, more is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from packhorse.core.clock import Chance, Clock
from packhorse.core.driving import adrive
from packhorse.core.job import NewJob
from packhorse.core.policies.journal import LINES_MAX, Group, JournalLine
from packhorse.core.policies.records import RecordChange
from packhorse.errors import SchemaOutOfDate, StoreCopied, StoreUnavailable
from packhorse.runtime.services.duty import OFF_DUTY_S, Duty
from packhorse.runtime.services.upkeep import spread
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store
from packhorse.stores.records import Changed

JOURNAL_TOPIC: Final = "journal"
#: Between two rounds, so that lines which come one by one are folded together.
_TOGETHER_S: Final = 0.02
#: Groups looked at in one round, and how many where all of them must rest or are unknown.
_GROUPS: Final = (100, 1_000, 10_000)
#: What a fold that failed counts as among the calls of the store.
_FOLD: Final = "fold"
#: How long a group rests that could not be folded: doubled each time, up to the longest.
_REST_S: Final = 2.0
_REST_S_MAX: Final = 60.0
#: What says nothing about a group: every one of them would fail.
_NOT_THE_GROUP: Final = (StoreUnavailable, StoreCopied, SchemaOutOfDate, OSError)
_LOG: Final = logging.getLogger("packhorse.worker")
#: How often a fold is tried again that another one came before.
_TRIES: Final = 10
#: Folds of one group before the others have their turn.
_FOLDS: Final = 10
#: Rounds that a burst folds before it looks for jobs again.
_ROUNDS: Final = 100


class Fold(NamedTuple):
    """What some lines of a group come to: one `fold` of the store, all of it or nothing."""

    line_ids: tuple[int, ...]
    changes: tuple[RecordChange, ...] = ()
    jobs: tuple[NewJob, ...] = ()
    note: Any = None  #: of the folding, for itself

    @property
    def does_something(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.line_ids or self.changes or self.jobs)


class Folding(Protocol):
    """What one kind of group makes of its lines."""

    @property
    def kind(self) -> str:
        """The kind of its groups: `batch`, `workflow`."""
        ...

    def fold(self, store: Store, group: Group, lines: Sequence[JournalLine]) -> Asking[Fold]:
        """Yield the reads that are needed, and return what to write.

        It may leave lines for the next fold, and is asked again from the start where another
        process has changed what it read. What it returns must check the versions it has read.
        """
        ...

    def folded(self, store: Store, group: Group, fold: Fold, changed: Changed) -> Asking[None]:
        """It was written; `changed.jobs` says which of its jobs were refused.

        Yields what is to be done about these. A process may die before that is done.
        """
        ...


class _Rest(NamedTuple):
    """A group that could not be folded rests."""

    until: float
    next_s: float  #: how long it rests if it fails again


class _Done(NamedTuple):
    """What a round came to; where either is true, the next one may find others."""

    moved: bool  #: a group was
    failed: bool  #: a group did, and rests


class Groups:
    """Folds the lines of groups, by the foldings of their kinds; leaves other kinds alone."""

    name = "groups"
    interval_s = 5.0

    def __init__(
        self,
        store: Store,
        clock: Clock,
        chance: Chance,
        worker: str,
        foldings: Sequence[Folding],
        *,
        failed: Callable[[str, BaseException], None],
        worked: Callable[[str], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._failed = failed
        self._worked = worked
        self._resting: dict[Group, _Rest] = {}  # of groups with lines only
        self._duty = Duty(store, clock, self.name, worker)
        self._chance = chance
        self._foldings = {each.kind: each for each in foldings}
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """There may be lines: look now."""
        self._woken.set()

    async def rest(self, wait_s: float) -> None:
        """Wait so long, or until there may be lines."""
        try:
            async with asyncio.timeout(wait_s):
                await self._woken.wait()
        except TimeoutError:
            return
        await asyncio.sleep(_TOGETHER_S)

    async def run_once(self) -> float:
        """Fold what is there if this worker is on duty, and say when to look again."""
        self._woken.clear()
        groups = await self._groups()
        if not groups:
            return spread(self.interval_s, self._chance)
        if not await self._duty.is_mine():
            self._forget(self._resting.copy())  # they are another worker's trouble
            return spread(OFF_DUTY_S, self._chance)
        done = await self._fold_groups(groups)
        return _TOGETHER_S if any(done) else spread(OFF_DUTY_S, self._chance)

    async def fold_all(self) -> bool:
        """Fold all that is there, on duty or not, as a burst does; says whether that was any."""
        moved = False
        for _ in range(_ROUNDS):
            done = await self._fold_groups(await self._groups())
            moved |= done.moved
            if not any(done):
                break
        return moved

    async def _groups(self) -> tuple[Group, ...]:
        """Groups to fold, that of the oldest line first."""
        journal, now = self._store.journal, self._clock.monotonic()
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
            except _NOT_THE_GROUP:
                raise
            except Exception as error:  # noqa: BLE001 - told, and tried again later
                self._rest(group, error)
                failed = True
            else:
                self._forget([group])
        return _Done(moved, failed)

    def _rest(self, group: Group, error: Exception) -> None:
        before = self._resting.get(group)
        is_first = not self._resting
        rest_s = _REST_S if before is None else before.next_s
        until = self._clock.monotonic() + rest_s
        self._resting[group] = _Rest(until, min(2 * rest_s, _REST_S_MAX))
        self._failed(_FOLD, error)
        if before is None:
            told = "%s %r cannot be folded, and is tried again from time to time: %r"
            shown = error if is_first else None
            _LOG.warning(told, group.kind, group.key, error, exc_info=shown)

    def _forget(self, groups: Iterable[Group]) -> None:
        """These groups rest no more."""
        for group in groups:
            if self._resting.pop(group, None) is not None and not self._resting:
                self._worked(_FOLD)

    async def _fold_much(self, group: Group) -> bool:
        """Fold the lines of a group, up to a bound; says whether there were any."""
        moved = False
        for _ in range(_FOLDS):
            lines = await self._fold_group(group)
            moved |= lines > 0
            if lines < LINES_MAX:
                break
        return moved

    async def _fold_group(self, group: Group) -> int:
        """Fold some lines of a group once; says how many."""
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
                return max(1, len(fold.line_ids))  # one that has only gone on with its work counts
        return 0  # others are at it, without end: it is theirs, or the next look's
