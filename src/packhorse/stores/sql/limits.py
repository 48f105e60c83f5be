# SPDX-License-Identifier: MIT
"""Limits at the claim: read the state of gates, and admit or block jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from packhorse.core.job import RateRule
from packhorse.core.policies.gates import (
    Blocked,
    Gate,
    GateKind,
    GateState,
    JobKeys,
    QueueLimits,
    TaskLimits,
    blocked_by,
    gates_of,
    limit_of,
    rule_of,
    too_heavy,
)
from packhorse.core.policies.rate_limit import RateLog, current, granted, latest_end_us
from packhorse.stores.plan import Steps
from packhorse.stores.requests import EVERY_TASK, QueueSettings, TaskSettings
from packhorse.stores.sql.dialect import Dialect
from packhorse.stores.sql.limit_state import Grants, decode_log, heaviest, state_of
from packhorse.stores.sql.lines import Keys, gate_text, make_ready, unblock
from packhorse.stores.sql.rows import json_text
from packhorse.stores.sql.statements import Rows, Send, SendMany, Together

#: Jobs of one line blocked by one statement; a later claim blocks the rest.
_LINE_MAX: Final = 5000
_QUEUE_WIDE: Final = (GateKind.QUEUE_CONCURRENCY, GateKind.QUEUE_RATE)
#: Rates that jobs are blocked under; a rate of the whole queue blocks no single job.
_NARROW_RATES: Final = (GateKind.TASK_RATE, GateKind.TENANT_RATE)
#: Blocked heavy jobs of one gate that are checked before lighter ones may pass.
_HEAVY_MAX: Final = 100


class ReadyJob(NamedTuple):
    """A ready job whose gates are checked: a row of `CANDIDATE_COLUMNS`."""

    seq: int
    id: str
    weight: int
    line: str | None
    order_line: str | None
    rank: int
    place: int
    queue: str
    task: str
    tenant: str
    ordering_key: str | None
    concurrency_key: str | None
    rate_key: str | None

    @property
    def keys(self) -> Keys:
        """The fields that decide its gates."""
        return Keys(*self[7:])

    @classmethod
    def of(cls, row: Sequence[Any]) -> ReadyJob:
        return cls._make(row)


class LimitBook:
    """The states of gates during one claim: read when first needed, written at its end."""

    def __init__(
        self,
        dialect: Dialect,
        now_us: int,
        tasks: Mapping[str, TaskSettings],
        shut: Mapping[Gate, int | None],
        running: Mapping[tuple[str, str | None], int],
        *,
        known: Sequence[str] | None = None,
    ) -> None:
        self.dialect = dialect
        self._now_us = now_us
        self._tasks = tasks
        self._shut = shut
        self._running = running
        self._known = known  # the tasks of the claim, if light jobs must not pass heavy ones
        self._states: dict[Gate, GateState] = {}
        self._gates_by_keys: dict[tuple[Any, ...], tuple[Gate, ...]] = {}
        self._grants: dict[Gate, Grants] = {}
        self._set_back: set[Gate] = set()
        self._heavy: dict[Gate, list[ReadyJob]] = {}
        self._served: dict[str, QueueSettings] = {}
        self._lines_held: Counter[tuple[str, str | None]] = Counter()
        self.reopens_us: int | None = None  #: when time opens a gate that held back a job
        self.allowance_us = 0  #: how long after this claim jobs with a rate limit may start
        self.rated: set[str] = set()  #: ids of jobs that a rate limit admitted
        self.released = False  #: jobs of any queue were unblocked

    def limits(self, queue: QueueSettings) -> bool:
        """Whether a limit or a shut gate may block a job of this queue."""
        return bool(self._tasks or self._shut) or queue.limited

    def lets_pass(self, queue: QueueSettings) -> bool:
        """Whether jobs of this queue may pass one that is blocked: not if only the queue blocks."""
        return bool(self._tasks or self._shut) or queue.tenant_rate is not None

    def turn_page(self, candidates: Rows, queue: QueueSettings) -> Steps[list[Any]]:
        """Read a page of candidates of a queue, and with the first one the queue's own gates."""
        self._lines_held.clear()
        self._served.setdefault(queue.name, queue)
        limits = {GateKind.QUEUE_CONCURRENCY: queue.concurrency, GateKind.QUEUE_RATE: queue.rate}
        own = [Gate(kind, (queue.name,)) for kind, limit in limits.items() if limit is not None]
        unread = [gate for gate in own if gate not in self._states]
        asked = [candidates, *[state_of(self.dialect, gate) for gate in unread]]
        rows: list[Any]
        rows, *answers = yield Together(asked)
        for gate, answer in zip(unread, answers, strict=True):
            self._keep_state(self._read_state(gate, answer, queue, None))
        return rows

    def admits(self, job: ReadyJob, queue: QueueSettings) -> bool:
        """Count a job that has no gates but its queue's rate, if that is known to have room."""
        gates = self._gates(job, queue)
        if not gates:
            return True
        if len(gates) > 1 or gates[0].kind is not GateKind.QUEUE_RATE:
            return False
        grants = self._grants[gates[0]]
        if job.weight > grants.room:
            return False
        self._grant(grants, job)
        return True

    def ask(self, job: ReadyJob, queue: QueueSettings) -> Steps[Blocked | None]:
        """Return the answer of the first closed gate; if all are open, count the job: None."""
        self._served.setdefault(queue.name, queue)
        blocked = yield from self._first_block(job, queue)
        if blocked is None:
            for gate in self._gates(job, queue):
                self._use(gate, job)
        return blocked

    def _first_block(self, job: ReadyJob, queue: QueueSettings) -> Steps[Blocked | None]:
        """Do as `policies.gates.admit`, reading the state of a gate only when it is reached."""
        gates = self._gates(job, queue)
        for index, gate in enumerate(gates):
            yield from self._ask_heavier(gate, job)
            state, blocked = yield from self._answer(gate, job, queue)
            if blocked is None:
                continue
            if too_heavy(state, weight=job.weight, now_us=self._now_us):
                elsewhere = yield from self._any_blocks(gates[index + 1 :], job, queue)
                blocked = msgspec.structs.replace(blocked, closes=blocked.closes and not elsewhere)
            self._note(state, blocked)
            return blocked
        return None

    def _any_blocks(
        self, gates: Sequence[Gate], job: ReadyJob, queue: QueueSettings
    ) -> Steps[bool]:
        blocks = []
        for gate in gates:
            _, blocked = yield from self._answer(gate, job, queue)
            blocks.append(blocked is not None)
        return any(blocks)

    def _answer(
        self, gate: Gate, job: ReadyJob, queue: QueueSettings
    ) -> Steps[tuple[GateState, Blocked | None]]:
        task = self._tasks.get(job.task)
        state: GateState = yield from self._state(gate, job, queue, task)
        blocked = blocked_by(state, job_id=job.id, weight=job.weight, now_us=self._now_us)
        return state, blocked

    def _gates(self, job: ReadyJob, queue: QueueSettings) -> tuple[Gate, ...]:
        keys = job[7:]  # all that decides them
        found = self._gates_by_keys.get(keys)
        if found is None:
            found = gates_of(job, queue, self._tasks.get(job.task), self._shut)
            self._gates_by_keys[keys] = found
        return found

    def _ask_heavier(self, gate: Gate, job: ReadyJob) -> Steps[None]:
        """Check blocked heavy jobs of the same gate that rank before this job.

        Otherwise light jobs would pass them for ever. A heavy one closes the gate for this claim.
        """
        if self._known is None or gate.kind not in _NARROW_RATES:
            return
        if gate not in self._heavy:
            self._heavy[gate] = yield from self._read_heavy(gate, self._known)
        waiting = self._heavy[gate]  # checking one may check others of them
        while heavy := next((one for one in waiting if self._precedes(one, job)), None):
            waiting.remove(heavy)
            blocked = yield from self._first_block(heavy, self._served[heavy.queue])
            if blocked is None:
                yield from make_ready(self.dialect, [heavy.seq])

    def _read_heavy(self, gate: Gate, known: Sequence[str]) -> Steps[list[ReadyJob]]:
        chosen = {
            "gate": gate_text(gate),
            "now": self._now_us,
            "tasks": self.dialect.many(known),
            "any_task": EVERY_TASK in known,
            "limit": _HEAVY_MAX,
        }
        rows = yield Rows(self.dialect.sql("blocked_heavy"), chosen)
        return [ReadyJob(*row) for row in rows]

    def _precedes(self, one: ReadyJob, job: ReadyJob) -> bool:
        """Whether a job ranks before another; queues are served one after the other."""
        if one.queue == job.queue:
            return (one.rank, one.place) < (job.rank, job.place)
        return one.queue in self._served

    def closed(self, job: ReadyJob, queue: QueueSettings) -> Steps[list[tuple[GateState, Blocked]]]:
        """Return every gate that would block the job now, in gate order; count nothing."""
        task = self._tasks.get(job.task)
        found = []
        for gate in gates_of(job, queue, task, self._shut):
            state = yield from self._read(gate, job, queue, task)
            if gate.kind is GateKind.ORDER:
                heads = yield Rows(self.dialect.sql("order_first"), (gate_text(gate),))
                state = GateState(gate, head=heads[0][0] if heads else None)
            blocked = blocked_by(state, job_id=job.id, weight=job.weight, now_us=self._now_us)
            if blocked is not None:
                found.append((state, blocked))
        return found

    def block(
        self, job: ReadyJob, blocked: Blocked, queue: QueueSettings, picked: Sequence[int]
    ) -> Steps[Literal["queue", "job", "others"]]:
        """Block a job with its line, and unblock one job at each of its gates that is open.

        Jobs `picked` for this claim stay ready. Returns what is blocked: the whole `queue`, of
        which no job is written; the `job`; or the job, while `others` became ready that may rank
        before the rest of the page. A job that only waits for a heavier one is not written: the
        next claim may not check that one.
        """
        if blocked.gate.kind in _QUEUE_WIDE and blocked.closes:
            return "queue"
        if self._only_outweighed(job, blocked):
            return "job"
        dialect, gate = self.dialect, gate_text(blocked.gate)
        line = job.line if job.order_line is None and blocked.closes else None
        if not self._held_with_its_line(gate, line):
            yield Send(dialect.sql("block"), (gate, job.seq))
            if line is not None:
                rest = {"gate": gate, "line": line, "limit": _LINE_MAX}
                rest["picked"] = dialect.many(picked)
                yield Send(dialect.sql("block_line"), rest)
        if blocked.reopens_us is not None:
            yield Send(dialect.sql("reopen_keep"), (gate, blocked.reopens_us, self._now_us))
        open_gates = yield from self._still_open(job, blocked, queue)
        released = 0
        for state in open_gates:
            most = heaviest(state, self._now_us)
            released += yield from unblock(dialect, {gate_text(state.gate): 1}, heaviest=most)
        self.released = self.released or released > 0
        return "others" if released else "job"

    def _held_with_its_line(self, gate: str, line: str | None) -> bool:
        """Whether an earlier job of this page has blocked the line, this job included."""
        self._lines_held[gate, line] += 1
        return line is not None and self._lines_held[gate, line] % (_LINE_MAX + 1) != 1

    def _only_outweighed(self, job: ReadyJob, blocked: Blocked) -> bool:
        if blocked.gate.kind not in _NARROW_RATES:
            return False
        state = msgspec.structs.replace(self._known_state(blocked.gate), shut=False)
        return blocked_by(state, job_id=job.id, weight=job.weight, now_us=self._now_us) is None

    def _still_open(
        self, job: ReadyJob, blocked: Blocked, queue: QueueSettings
    ) -> Steps[list[GateState]]:
        """Return the other gates of a blocked job that would admit another job instead."""
        task = self._tasks.get(job.task)
        found = []
        for gate in gates_of(job, queue, task, self._shut):
            if gate == blocked.gate or gate.kind is GateKind.ORDER or gate.kind in _QUEUE_WIDE:
                continue
            state = yield from self._state(gate, job, queue, task)
            if blocked_by(state, job_id="", weight=1, now_us=self._now_us) is None:
                found.append(state)
        return found

    def replenish(self) -> Steps[int]:
        """Unblock as many jobs as rates with room have admitted; return how many."""
        counts = {
            gate_text(gate): grants.passed
            for gate, grants in self._grants.items()
            if grants.passed and self._has_room(gate)
        }
        for grants in self._grants.values():
            grants.passed = 0
        if not counts:
            return 0
        dialect = self.dialect
        holding = yield Rows(dialect.sql("gates_holding"), (dialect.many(list(counts)),))
        released: int = yield from unblock(dialect, {gate: counts[gate] for (gate,) in holding})
        self.released = self.released or released > 0
        return released

    def _has_room(self, gate: Gate) -> bool:
        if gate.kind not in _NARROW_RATES:
            return False
        state = self._known_state(gate)
        return blocked_by(state, job_id="", weight=1, now_us=self._now_us) is None

    def keep(self) -> Steps[None]:
        """Write the logs of granted rates."""
        changed = [gate for gate, grants in self._grants.items() if grants.changed]
        gates = dict.fromkeys([*changed, *self._set_back])
        logs = [(gate_text(gate), json_text(self._known_state(gate).log)) for gate in gates]
        if logs:
            yield SendMany(self.dialect.sql("rate_keep"), logs)

    def _note(self, state: GateState, blocked: Blocked) -> None:
        if blocked.reopens_us is not None:
            self.reopens_us = min(self.reopens_us or blocked.reopens_us, blocked.reopens_us)
        if blocked.closes:
            self._states[state.gate] = msgspec.structs.replace(state, shut=True)
            if state.gate in self._grants:
                self._grants[state.gate].room = 0

    def _use(self, gate: Gate, job: ReadyJob) -> None:
        if gate in self._grants:
            self._grant(self._grants[gate], job)
            return
        state = self._states.get(gate)
        if state is not None and state.limit is not None:  # a line of order has nothing to count
            running = state.running + 1
            self._states[gate] = msgspec.structs.replace(state, running=running)

    def _grant(self, grants: Grants, job: ReadyJob) -> None:
        grants.room -= job.weight
        grants.owed += job.weight
        grants.passed += 1
        grants.changed = True
        self.rated.add(job.id)

    def _state(
        self, gate: Gate, job: ReadyJob, queue: QueueLimits, task: TaskLimits | None
    ) -> Steps[GateState]:
        if gate.kind is GateKind.ORDER:
            return GateState(gate, head=job.id)  # only heads are in the ready lane
        if gate in self._states:
            return self._known_state(gate)
        return self._keep_state((yield from self._read(gate, job, queue, task)))

    def _keep_state(self, known: GateState) -> GateState:
        self._states[known.gate] = known
        if known.rule is not None:
            room = heaviest(known, self._now_us) or 0
            self._grants[known.gate] = Grants(room if known.until_us <= self._now_us else 0)
        return known

    def _known_state(self, gate: Gate) -> GateState:
        """Return a gate that was read, with all grants since then in its log."""
        state, grants = self._states[gate], self._grants.get(gate)
        if grants is not None and grants.owed and state.rule is not None:
            owed, grants.owed = grants.owed, 0
            log = granted(state.log, state.rule, owed, self._now_us, allowance_us=self.allowance_us)
            state = self._states[gate] = msgspec.structs.replace(state, log=log)
        return state

    def _read(
        self, gate: Gate, keys: JobKeys, queue: QueueLimits, task: TaskLimits | None
    ) -> Steps[GateState]:
        match gate.kind:
            case GateKind.TASK_CONCURRENCY:
                running = self._running.get((keys.task, keys.concurrency_key), 0)
                return GateState(gate, limit=limit_of(gate, queue, task), running=running)
            case GateKind.PAUSE | GateKind.ORDER:
                return GateState(gate, shut=True)
            case _:
                answer = yield state_of(self.dialect, gate)
                return self._read_state(gate, answer, queue, task)

    def _read_state(
        self, gate: Gate, answer: list[Any], queue: QueueLimits, task: TaskLimits | None
    ) -> GateState:
        if gate.kind is GateKind.QUEUE_CONCURRENCY:
            return GateState(gate, limit=queue.concurrency, running=answer[0][0])
        rule = rule_of(gate, queue, task)
        log = self._as_of_now(gate, decode_log(answer), rule)
        return GateState(gate, until_us=self._shut.get(gate) or 0, rule=rule, log=log)

    def _as_of_now(self, gate: Gate, log: RateLog, rule: RateRule | None) -> RateLog:
        """Rewrite a log whose grants lie in the future because the clock was set back."""
        if rule is None or not log or log[-1][0] <= latest_end_us(rule, self._now_us):
            return log
        self._set_back.add(gate)
        return current(log, rule, self._now_us)
