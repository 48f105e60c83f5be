# SPDX-License-Identifier: MIT
"""How gates stand, and the turnstile through which one claim lets ready jobs.

Held-back jobs are looked at and passed over, each claim anew: that is plain, and slow behind many
of them. A store that is to be fast keeps them out of the way.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from packhorse.job import JobStatus
from packhorse.policies.gates import (
    Gate,
    GateKind,
    Refusal,
    Standing,
    admit,
    gates_of,
    limit_of,
    rule_of,
)
from packhorse.policies.rate_limit import RateLog, current, granted
from packhorse.stores.memory.access import Access
from packhorse.stores.memory.rows import JobRow

__all__ = ["Turnstile", "gates_for", "standing_of"]


def gates_for(access: Access, row: JobRow) -> tuple[Gate, ...]:
    """The gates a job has, as things are set now; none for most."""
    state, new = access.state, row.new
    return gates_of(new, state.settings(new.queue), state.tasks.get(new.task), state.shut)


def standing_of(access: Access, gate: Gate, row: JobRow) -> Standing:
    """How one gate of a job stands."""
    state = access.state
    queue, task = state.settings(row.new.queue), state.tasks.get(row.new.task)
    until_us = state.shut.get(gate, 0)
    rule = rule_of(gate, queue, task)
    log = () if rule is None else current(state.grants.get(gate, ()), rule, access.now_us)
    return Standing(
        gate,
        shut=until_us is None,
        until_us=until_us or 0,
        limit=limit_of(gate, queue, task),
        running=_running(access, gate),
        rule=rule,
        log=log,
        head=_head(access, gate),
    )


def _running(access: Access, gate: Gate) -> int:
    if gate.kind is GateKind.QUEUE_CONCURRENCY:
        return access.state.counts[gate.name[0], JobStatus.PROCESSING]
    if gate.kind is GateKind.TASK_CONCURRENCY:
        return len(access.state.busy.group(*gate.name))
    return 0


def _head(access: Access, gate: Gate) -> str | None:
    if gate.kind is not GateKind.ORDER:
        return None
    first = access.state.lines.group(*gate.name).first()
    return None if first is None else first[-1]


class Turnstile:
    """Lets jobs through one after another, and remembers for the next whom it let through."""

    def __init__(self, access: Access) -> None:
        self.logs: dict[Gate, RateLog] = {}  # with the grants of this claim; to be written
        self.reopens_us: int | None = None  # the first instant at which time opens a gate
        self._access = access
        self._closed: set[Gate] = set()  # refused somebody in this claim
        self._taken: Counter[Gate] = Counter()

    def lets(self, row: JobRow) -> bool:
        """Whether a job may go; if so it counts from now on."""
        gates = gates_for(self._access, row)
        if not gates:
            return True
        standings = {gate: self._standing(gate, row) for gate in gates}
        refused = admit(
            standings.values(),
            job_id=row.new.id,
            weight=row.new.weight,
            now_us=self._access.now_us,
        )
        if refused is not None:
            self._remember(refused)
            return False
        for gate, standing in standings.items():
            self._count(gate, standing, row.new.weight)
        return True

    def _standing(self, gate: Gate, row: JobRow) -> Standing:
        standing = standing_of(self._access, gate, row)
        # What is current is written even when nothing is granted; see `rate_limit.current`.
        log = self.logs.setdefault(gate, standing.log) if standing.rule is not None else ()
        return msgspec.structs.replace(
            standing,
            shut=standing.shut or gate in self._closed,
            running=standing.running + self._taken[gate],
            log=log,
        )

    def _remember(self, refused: Refusal) -> None:
        if refused.closes:
            self._closed.add(refused.gate)
        if refused.reopens_us is not None:
            earliest = self.reopens_us
            self.reopens_us = (
                refused.reopens_us if earliest is None else min(earliest, refused.reopens_us)
            )

    def _count(self, gate: Gate, standing: Standing, weight: int) -> None:
        self._taken[gate] += 1
        if standing.rule is not None:
            now_us = self._access.now_us
            self.logs[gate] = granted(standing.log, standing.rule, weight, now_us)
