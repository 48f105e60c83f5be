# SPDX-License-Identifier: MIT
"""What to claim next: from which queues, of which priorities, and whether suspects have their turn.

Pure decisions: the caller passes in what happened and the time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from math import inf
from typing import Final, NamedTuple

from packhorse.core.clock import SECOND_US
from packhorse.core.job import PRIORITY_BY_NAME, Priority
from packhorse.core.policies.rate_limit import ALLOWANCE_US_MAX

#: How long to look ahead on the plain queues before the others are asked again.
_AHEAD_S: Final = 0.5
#: For how long a queue counts as limited in which such a job was seen.
_SEEN_S: Final = 60.0


class QueueRotation:
    """Which queues a claim asks, in which order, and whether it goes beyond the free slots.

    A job held ahead keeps others of its limit from running elsewhere, so only queues without limits
    are looked ahead on. A worker that serves both kinds asks all of them for its free slots; while
    that brings jobs of unlimited queues only, and as many as it wanted, it looks ahead on those:

        all, free slots ──full, none of a limited queue──▶ unlimited ones, ahead
               ▲                                                 │
               └──half a second, woken, or fewer than wanted ────┘

    Queues just served are asked after the others, so that equals in priority take turns. Limited
    are queues with limits, with tasks that have limits, or with a cap in this worker; and for a
    minute those in which a job with a rate key, or one that met a limit elsewhere, was seen.
    """

    def __init__(
        self, queues: tuple[str, ...], capped: Iterable[str] = (), *, look_ahead: bool = True
    ) -> None:
        self._look_ahead = look_ahead
        self.limited: frozenset[str] = frozenset()  #: those served that take no look-ahead
        self.ahead = True  #: whether a claim may go beyond the free slots now
        self.queues = queues  #: all of them, in the order in which to ask them next
        self._capped = frozenset(capped)
        self._set: frozenset[str] = frozenset()
        self._seen: dict[str, float] = {}  # at most one entry per queue served
        self._plain: tuple[str, ...] = queues
        self._ahead_until = float("-inf")
        self._sort()

    def set_limited(self, queues: frozenset[str]) -> None:
        """Replace the set of queues that have limits."""
        self._set = queues
        self._sort()

    def seen_limited(self, queues: Iterable[str], now: float) -> None:
        """Treat these queues as limited for a minute: a claim brought a limited job of each."""
        self._seen.update(dict.fromkeys(queues, now + _SEEN_S))
        self._sort()

    def woken(self, topics: Collection[str]) -> None:
        """Ask all queues again if a wake-up names a limited one; `*` names none."""
        if any(f"queue:{name}" in topics for name in self.limited):
            self._ahead_until = float("-inf")

    def ask(self, now: float) -> tuple[str, ...]:
        """Return the queues to ask now; sets `ahead`."""
        if not (self.limited and self._look_ahead):
            return self.queues
        if any(until <= now for until in self._seen.values()):
            self._seen = {name: until for name, until in self._seen.items() if until > now}
            self._sort()
        self.ahead = not self.limited or (bool(self._plain) and now < self._ahead_until)
        return self._plain if self.ahead else self.queues

    def answered(
        self, now: float, asked: tuple[str, ...], *, full: bool, given: Collection[str]
    ) -> bool:
        """Learn from a claim; return whether it asked all queues, so that nothing else is ready.

        `full` when it brought as many jobs as it wanted, of the queues `given`. Those are asked
        after queues of the same priority next time.
        """
        if given and len(self.queues) > 1:  # sorting keeps the order of equals
            self.queues = tuple(sorted(self.queues, key=given.__contains__))
            self._plain = tuple(sorted(self._plain, key=given.__contains__))
        whole = len(asked) == len(self.queues)
        if not whole and not full:
            self._ahead_until = float("-inf")
        elif whole and full and self.limited and self.limited.isdisjoint(given):
            self._ahead_until = now + _AHEAD_S
        return whole

    def _sort(self) -> None:
        limited = self._set | self._capped | self._seen.keys()
        self.limited = limited & frozenset(self.queues)
        self._plain = tuple(name for name in self.queues if name not in self.limited)
        self.ahead = self._look_ahead and not self.limited


class QueueCaps:
    """The most jobs that this worker holds of some queues.

    A claim asks for no more jobs than fit into each queue it asks, and leaves full queues out.
    """

    def __init__(self, caps: Mapping[str, int], held: Callable[[str], int]) -> None:
        self._caps = dict(caps)
        self._held = held
        self._full: tuple[str, ...] = ()

    def within(self, queues: tuple[str, ...], limit: int) -> tuple[tuple[str, ...], int]:
        """Return the queues that have room, and how many jobs to ask for."""
        rooms = {name: self._room(name) for name in self._caps if name in queues}
        self._full = tuple(name for name, room in rooms.items() if room < 1)
        left = tuple(name for name in queues if name not in self._full)
        return left, min([limit, *(rooms[name] for name in left if name in rooms)] if left else [0])

    @property
    def freed(self) -> bool:
        """Whether a queue that the last claim left out as full has room again."""
        return any(self._room(name) > 0 for name in self._full)

    def _room(self, name: str) -> int:
        return self._caps[name] - self._held(name)


_EVERY_PRIORITY: Final = int(Priority.BACKGROUND)


class Asked(NamedTuple):
    """The priorities that a claim asks for."""

    limit: int
    levels: Mapping[str, int]  #: of queues; empty: every priority
    level: int = _EVERY_PRIORITY  #: of all queues
    spared: bool = False  #: background jobs of some queues were left out


class Urgency:
    """How many jobs of which priorities a worker may claim.

    A slot kept for `critical` is one that only critical jobs may take; so many less may be held by
    all others together. Kept for `high`, it is for critical and high ones.
    """

    def __init__(
        self,
        reserve: Mapping[str, int],
        concurrency: int,
        held_below: Callable[[int], int],
    ) -> None:
        self.concurrency = concurrency
        self._reserve = sorted((PRIORITY_BY_NAME[name], kept) for name, kept in reserve.items())
        self._held_below = held_below  #: how many jobs less urgent than a level are held
        self._background: frozenset[str] = frozenset()
        self._nothing_else = False
        self._empty_level = _EVERY_PRIORITY
        self.plain = not reserve  #: claims ask for every priority, also ahead of free slots

    def set_background(self, queues: Iterable[str]) -> None:
        """Claim background jobs of these queues only while nothing else waits."""
        self._background = frozenset(queues)
        self.plain = not (self._reserve or self._background)

    def within(self, queues: tuple[str, ...], limit: int) -> Asked:
        """Return what to ask for when there is room for `limit` jobs."""
        level, limit = self._room(limit)
        levels = dict.fromkeys(queues, level) if level < _EVERY_PRIORITY else {}
        spared = level == _EVERY_PRIORITY and not self._nothing_else
        if spared:
            levels = dict.fromkeys(self._background.intersection(queues), _EVERY_PRIORITY - 1)
        return Asked(limit, levels, level, spared and bool(levels))

    def answered(self, asked: Asked, *, full: bool) -> bool:
        """Learn from a claim; return whether to claim background jobs at once."""
        self._nothing_else = asked.spared and not full
        self._empty_level = asked.level
        return self._nothing_else

    def is_news(self, limit: int) -> bool:
        """Whether there is room now for less urgent jobs than the last claim asked for."""
        return bool(self._reserve) and self._room(limit)[0] > self._empty_level

    def _room(self, limit: int) -> tuple[int, int]:
        """Return the least urgent level that has room, and how many jobs fit."""
        level, room, kept = int(Priority.CRITICAL), limit, 0
        rooms = [(level, room)]
        for reserved, count in self._reserve:
            kept += count
            room = min(room, self.concurrency - kept - self._held_below(reserved))
            rooms[-1] = (reserved, rooms[-1][1])
            rooms.append((_EVERY_PRIORITY, room))
        if not self._reserve:
            return _EVERY_PRIORITY, limit
        return next(((level, room) for level, room in reversed(rooms) if room > 0), rooms[0])


#: How long running jobs may keep a turn from beginning, at first and at most.
_DRAIN_S, _DRAIN_S_MAX = 2.0, 600.0
#: How long a turn goes on taking suspects.
_TURN_S: Final = 1.0
#: How long a suspect of the fewest losses is left alone, and any of them at most; see `Quarantine`.
_ALONE_S, _ALONE_S_MAX = 2.0, 600.0
_SUSPECT_CRASHES, _DOUBLINGS_MAX = 2, 10


class Mode(Enum):
    """What may be claimed now."""

    NORMAL = "normal"
    NOTHING = "nothing"  #: wait for what is running
    SUSPECTS = "suspects"  #: one, to run alone


class _State(Enum):
    NORMAL = "normal"
    DRAINING = "draining"
    TURN = "turn"


class Quarantine:
    """When suspects get their turn: jobs that were lost with a worker, and may have killed it.

    A suspect runs alone, so that if it kills this worker too, it is known to be the one. That costs
    all other jobs, so turns are short:

        normal ──suspects wait──▶ draining ──nothing runs──▶ turn ──1 s, or none left──▶ normal
           ▲                          │
           └──── 2 s were not enough ─┘       and normal work goes on for as long as it stood

    So that no job waits for a suspect that takes long, normal work goes on beside it after 2 s;
    what happens in company proves nothing against it. Every loss doubles that time, so that one
    which kills its worker late is found out too.

    Each drain that came to nothing makes the next one twice as patient, so that no suspect waits
    for ever beside endless long work. Workers that stand at the same time keep all jobs waiting, so
    of one supervisor's processes only the first takes suspects, and a busy worker that sees some
    goes on for a while that differs from worker to worker.
    """

    def __init__(self, *, patience_s: float = 0.0) -> None:
        #: No suspect waits or has its turn: `mode` stays normal until a claim sees one.
        self.idle = True
        self._patience_s = patience_s
        self._state = _State.NORMAL
        self._waiting = False
        self._seen_at: float | None = None
        self._stood_since = 0.0
        self._turn_since = 0.0
        self._normal_until = 0.0
        self._drain_s = _DRAIN_S
        self._alone_s = _ALONE_S
        self._alone_since: float | None = None

    def claimed(self, mode: Mode, *, jobs: int, suspects: bool, crashes: int = 0) -> None:
        """Learn from a claim; `crashes` is how often the claimed suspect was lost."""
        self._waiting = suspects and (mode is Mode.NORMAL or jobs > 0)
        self._settle_down()
        if mode is Mode.SUSPECTS:
            doubled = _ALONE_S * 2 ** min(max(0, crashes - _SUSPECT_CRASHES), _DOUBLINGS_MAX)
            self._alone_s = min(doubled, _ALONE_S_MAX)
            self._alone_since = None

    def mode(self, now: float, *, busy: bool, idle: bool) -> Mode:
        """Return what to claim; `busy` while anything runs, `idle` when no other work is ready."""
        if self._state is _State.NORMAL:
            if not self._waiting:
                return Mode.NORMAL
            if self._seen_at is None:
                self._seen_at = now
                self._normal_until = max(self._normal_until, now + self._patience_s)
            if now < self._normal_until and not idle:
                return Mode.NORMAL
            self._state, self._stood_since = _State.DRAINING, now
        if self._state is _State.DRAINING:
            if busy:
                return self._keep_draining(now)
            self._state, self._turn_since, self._drain_s = _State.TURN, now, _DRAIN_S
        if busy:
            return self._leave_alone(now)
        if self._waiting and now - self._turn_since < _TURN_S:
            return Mode.SUSPECTS
        return self._back_to_normal(now)

    @property
    def is_open(self) -> bool:
        """Whether a suspect has its turn, or is about to: nothing else may begin."""
        return self._state is not _State.NORMAL

    def next_change(self, now: float) -> float:
        """Return how long until `mode` may change by time alone."""
        if self._state is _State.DRAINING:
            return max(0.0, self._stood_since + self._drain_s - now)
        if self._state is _State.TURN and self._alone_since is not None:
            return max(0.0, self._alone_since + self._alone_s - now)
        if self._state is _State.NORMAL and self._waiting:
            return max(0.0, self._normal_until - now)
        return inf

    def _keep_draining(self, now: float) -> Mode:
        if now - self._stood_since < self._drain_s:
            return Mode.NOTHING
        self._drain_s = min(2 * self._drain_s, _DRAIN_S_MAX)
        return self._back_to_normal(now)

    def _leave_alone(self, now: float) -> Mode:
        if self._alone_since is None:
            self._alone_since = now
        if now - self._alone_since < self._alone_s:
            return Mode.NOTHING
        return self._back_to_normal(now)

    def _back_to_normal(self, now: float) -> Mode:
        self._state = _State.NORMAL
        self._normal_until = now + (now - self._stood_since)
        self._settle_down()
        return Mode.NORMAL

    def _settle_down(self) -> None:
        self.idle = self._state is _State.NORMAL and not self._waiting
        if self.idle:
            self._seen_at = None


_LEAST_US: Final = 20_000
_SHRINKS: Final = 0.98


class StartAllowance:
    """How long after their claim jobs with a rate limit may start; see `policies.rate_limit`.

    Asking for much costs throughput, since limits count it in; asking for little wastes grants. So
    it doubles with every job that could not start in time, and shrinks slowly with those that did.
    Threads of handlers ask too; an answer lost between them does no harm.
    """

    def __init__(self) -> None:
        self.us = _LEAST_US

    def is_late(self, start_by: float, now: float) -> bool:
        """Return whether it is too late to start, and adapt the allowance to that."""
        late = now > start_by
        grown, shrunk = min(ALLOWANCE_US_MAX, 2 * self.us), max(_LEAST_US, int(self.us * _SHRINKS))
        self.us = grown if late else shrunk
        return late


class StoreTime:
    """By how much the store's clock is ahead of this process's monotonic one, between two bounds.

    An answer that gives the store's time leaves the difference open by as long as it took. Both
    bounds keep what earlier answers showed, as far as the newest answer allows it.
    """

    def __init__(self) -> None:
        self._known = False
        self.least_us = self.most_us = 0

    def read(self, now_us: int, asked_at: float, answered_at: float) -> None:
        """Narrow the bounds by an answer that gives the store's time as `now_us`."""
        least_us = now_us - int(answered_at * SECOND_US)
        most_us = now_us - int(asked_at * SECOND_US)
        if self._known:  # unless the clock was set since
            self.least_us = max(least_us, min(self.least_us, most_us))
            self.most_us = max(least_us, min(self.most_us, most_us))
        else:
            self._known, self.least_us, self.most_us = True, least_us, most_us
