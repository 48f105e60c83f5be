# SPDX-License-Identifier: MIT
"""Leases on PostgreSQL: repeated looks do not walk past jobs that have ended.

Every job is held for a while, so an old snapshot keeps one dead row of each among those that are
held, and a look at all held jobs costs more with every job that was run. The looks that workers
repeat are therefore narrow:

- Whose lease has run out is read from the workers. For such a worker all held jobs are looked at,
  until there was none of it `SETTLED_US` after the lease ran out: then it can hold none any more.
- Jobs held beyond their limit are looked for from the limit that the last look reached. A claim
  that commits within `HOLD_GRACE_US` is there before its limit is reached; for those that take
  longer, one look in `SETTLED_US` begins so much earlier.
- Jobs of workers that the store does not know, which only lost data can bring about, are looked
  for among all held jobs, by the first look and then once in `EVERY_JOB_US`, or once in
  `EVERY_JOB_REST` times as long as that look took.
- What such a look saw of the jobs of a worker that renews here is compared with what the worker
  says it holds, and only what it does not know is looked at again. A worker that is unsure, or
  whose store object makes no such looks, has all held jobs looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec

from packhorse.core.clock import SECOND_US, SystemClock
from packhorse.core.lifecycle import Orphan
from packhorse.core.policies.lease import renewed_until_us
from packhorse.stores.plan import Plan, Steps, planned
from packhorse.stores.postgres.dialect import POSTGRES
from packhorse.stores.postgres.statements import Once, sql
from packhorse.stores.requests import ExpiredLease, ExpiredLeases, Renewal, Renewed
from packhorse.stores.sql.statements import NOW, Rows, Send
from packhorse.stores.sql.upkeep import SqlLeases, read_orphan, release_unknown

#: How long a claim may take from reading the lease to its commit.
SETTLED_US: Final = 60 * SECOND_US
#: How often all held jobs are looked at.
EVERY_JOB_US: Final = 60 * SECOND_US
EVERY_JOB_REST: Final = 200
#: Before every instant.
_NEVER: Final = -(2**62)
#: Where a renewal looks for jobs that its worker does not know: all that are held, or those seen.
_HELD: Final = "job.lane = {lane.held}"
_SEEN: Final = "job.id = any(:seen::text[]) and coalesce(job.lane, -1) = {lane.held}"


class PostgresLeases(SqlLeases):
    """See `LeaseStore`."""

    def __init__(self) -> None:
        super().__init__(POSTGRES)
        self._time = SystemClock().monotonic
        self._looked_at_all_us = _NEVER
        self._looked_at = -math.inf  #: the same, by the own clock
        self._rest_us = EVERY_JOB_US  #: until the next look at all held jobs
        #: What workers that renew here held then: id and fence.
        self._held_by: dict[str, set[tuple[str, int]]] = {}
        self._looked_back_us = _NEVER  #: when a look began `SETTLED_US` earlier
        self._holds_floor_us = _NEVER  #: no job is held with a limit up to this instant
        self._without_jobs: frozenset[tuple[str, int]] = frozenset()  #: expired leases, settled

    def renew(self, renewal: Renewal) -> Plan[Renewed]:
        return Plan("renew", lambda: _renew(renewal), look=lambda: self._renew_in_one(renewal))

    @planned(writes=False)
    def expired(self) -> Steps[ExpiredLeases]:
        now_us: int = yield NOW
        rests = self._looked_at_all_us <= now_us < self._looked_at_all_us + self._rest_us
        ran_out = frozenset((yield Rows(sql("leases_run_out"), {"now": now_us})))
        if rests and ran_out <= self._without_jobs:
            return ExpiredLeases(now_us, ())
        expired = yield from self._look_at_all(now_us)
        holders = {lease.worker for lease in expired}
        self._without_jobs = frozenset(
            (worker, expires_us)
            for worker, expires_us in ran_out
            if worker not in holders and expires_us + SETTLED_US <= now_us
        )
        return ExpiredLeases(now_us, expired)

    def _look_at_all(self, now_us: int) -> Steps[tuple[ExpiredLease, ...]]:
        """Find expired leases by worker; remember what the workers that renew here hold."""
        own: dict[str, set[tuple[str, int]]] = {worker: set() for worker in self._held_by}
        began = self._time()
        rows = yield Rows(sql("held_jobs"), {"now": now_us, "own": list(own)})
        self._looked_at = self._time()
        self._looked_at_all_us = now_us
        took_us = round((self._looked_at - began) * SECOND_US)
        self._rest_us = max(EVERY_JOB_US, EVERY_JOB_REST * took_us)
        for worker, _, _, job_id, fence in rows:
            if job_id is not None:
                own[worker].add((job_id, fence))
        self._held_by = own
        expired = [ExpiredLease(*row[:3]) for row in rows if row[3] is None]
        return tuple(sorted(expired, key=attrgetter("worker")))

    def _renew_in_one(self, renewal: Renewal) -> Steps[Renewed | None]:
        """Renew in one statement; None if the store holds jobs that the worker does not know of."""
        if renewal.step_us > 0:
            return None
        seen = self._held_by.setdefault(renewal.worker, set())
        unknown = sorted(job_id for job_id, _ in seen.difference(renewal.held or ()))
        old_us = (self._time() - self._looked_at) * SECOND_US
        narrow = not renewal.unsure and old_us <= 2 * self._rest_us
        text = sql("lease_renew", looked=_SEEN if narrow else _HELD)
        asked = {**_renewed(renewal, anyway=False), "seen": unknown}
        [(now_us, before_us, lost)] = yield Once(text, asked)
        if lost:
            return None
        return _answer(renewal, now_us, before_us)

    @planned(writes=False)
    def orphans(self, workers: Sequence[str], *, limit: int) -> Steps[tuple[Orphan, ...]]:
        now_us: int = yield NOW
        back = not self._looked_back_us <= now_us < self._looked_back_us + SETTLED_US
        chosen = {
            "now": now_us,
            "workers": list(workers),
            "floor": self._holds_floor_us - (SETTLED_US if back else 0),
            "limit": limit,
        }
        rows = yield Rows(sql("orphans_above"), chosen)
        orphans = tuple(read_orphan(row, now_us) for row in rows)
        if len(orphans) < limit:
            self._holds_floor_us = min([now_us, *(orphan.lost_us - 1 for orphan in orphans)])
            self._looked_back_us = now_us if back else self._looked_back_us
        return orphans


def _renewed(renewal: Renewal, *, anyway: bool) -> dict[str, Any]:
    """The parameters of `lease_renew`."""
    held = renewal.held
    return {
        **msgspec.structs.asdict(renewal),
        **msgspec.structs.asdict(renewal.totals),
        "anyway": anyway,
        "ids": None if held is None else [job_id for job_id, _ in held],
        "fences": None if held is None else [fence for _, fence in held],
    }


def _renew(renewal: Renewal) -> Steps[Renewed]:
    yield from POSTGRES.lock_all()
    text = sql("lease_renew", looked="false")
    [(now_us, before_us, _)] = yield Rows(text, _renewed(renewal, anyway=True))
    if renewal.step_us > 0:
        moved = {"worker": renewal.worker, "step_us": renewal.step_us, "now": now_us}
        yield Send(sql("holds_move"), moved)
    released = 0
    if renewal.held is not None:
        released = yield from release_unknown(POSTGRES, renewal.worker, set(renewal.held))
    return _answer(renewal, now_us, before_us, released)


def _answer(renewal: Renewal, now_us: int, before_us: int | None, released: int = 0) -> Renewed:
    expires_us = renewed_until_us(now_us, renewal.lease_us, renewal.asked_us, before_us)
    return Renewed(expires_us, now_us, before_us is None or before_us <= now_us, released)
