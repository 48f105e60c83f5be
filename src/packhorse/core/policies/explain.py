# SPDX-License-Identifier: MIT
"""Why is it not running? From what a store sees of a job to reasons that people can act on."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from types import MappingProxyType
from typing import Final, assert_never

import msgspec

from packhorse.core.clock import to_datetime
from packhorse.core.durations import span_text
from packhorse.core.job import (
    RETRY_WAITING,
    TERMINAL,
    DeadReason,
    JobRecord,
    JobStatus,
    Priority,
    RateRule,
    waits_for,
)
from packhorse.core.policies.gates import Gate, GateKind
from packhorse.core.policies.lease import is_lost, taken_back_us
from packhorse.core.text import nearest

#: Jobs before one that are counted.
AHEAD_MAX: Final = 10_000
#: Jobs that one closed gate names.
JOBS_NAMED_MAX: Final = 10


class ClosedGate(msgspec.Struct, frozen=True):
    """A gate that would refuse the job now, and what is known of it."""

    gate: Gate
    reopens_us: int | None = None  #: when time alone opens it; None: time does not
    limit: int | None = None  #: of concurrency
    running: int = 0  #: how many jobs have it now
    rule: RateRule | None = None
    jobs: tuple[str, ...] = ()  #: the head of the line, or who runs; at most `JOBS_NAMED_MAX`


class Owner(msgspec.Struct, frozen=True):
    """The lease of the worker that holds a job; a worker the store does not know has none."""

    heard_us: int  #: when it last renewed
    expires_us: int


class OpenStep(msgspec.Struct, frozen=True):
    """A step of its handler that a job waits in."""

    name: str
    until_us: int | None  #: when it ends at the latest; None: only a signal ends it
    signal: str | None = None  #: that ends it; None: it sleeps


class JobFacts(msgspec.Struct, frozen=True):
    """What a store sees of a job at one instant, to explain why it does not run."""

    record: JobRecord  #: payload and result may be left out
    now_us: int
    suspect: bool = False  #: it was lost with its worker, so it runs alone
    queue_paused: bool = False
    closed: tuple[ClosedGate, ...] = ()  #: each of its gates that is closed for it, in gate order
    background_only: bool = False  #: its queue gives background jobs while nothing else waits
    #: Ready jobs of its queue that rank before it, held back or not; a store may stop at AHEAD_MAX.
    ahead: int = 0
    served: bool = True  #: some live worker serves its queue
    queues: tuple[str, ...] = ()  #: those that live workers serve, where none serves its own
    known: bool = True  #: some live worker that serves its queue knows its task
    awake: bool = True  #: not every live worker that serves its queue is quiet
    watched: bool = True  #: some worker lives, whatever it serves: it would take back a lost job
    owner: Owner | None = None  #: of a running job
    hold_until_us: int | None = None  #: of a running job
    step: OpenStep | None = None  #: of a job that waits; read by those who ask for an explanation
    question: str | None = None  #: what it asks a person, and was not told yet; read as `step`


class ReasonCode(StrEnum):
    """Stable names of the reasons."""

    FINISHED = "finished"
    RUNNING = "running"
    WORKER_LOST = "worker_lost"
    NOT_DUE = "not_due"
    SLEEPS = "sleeps"
    WAITS_FOR_SIGNAL = "waits_for_signal"
    BREAKER_OPEN = "breaker_open"
    NEEDS_HUMAN = "needs_human"
    WAITS_FOR_NODES = "waits_for_nodes"
    RETRY_WAITS = "retry_waits"
    DEADLINE_PASSED = "deadline_passed"
    PARKED = "parked"
    QUEUE_PAUSED = "queue_paused"
    TENANT_PAUSED = "tenant_paused"
    KEY_PAUSED = "key_paused"
    BEHIND_HEAD = "behind_head"
    CONCURRENCY = "concurrency"
    RATE_LIMIT = "rate_limit"
    NO_WORKER = "no_worker"
    UNKNOWN_TASK = "unknown_task"
    WORKERS_QUIET = "workers_quiet"
    SUSPECT = "suspect"
    BACKGROUND_ONLY = "background_only"
    BEHIND = "behind"
    READY = "ready"


class Obstacle(msgspec.Struct, frozen=True, omit_defaults=True):
    """One reason, for programs and for people."""

    code: ReasonCode
    text: str
    at_us: int | None = None  #: the instant the reason is about
    jobs: tuple[str, ...] = ()  #: the jobs it is about
    count: int | None = None  #: how many it is about


def explain(facts: JobFacts) -> tuple[Obstacle, ...]:
    """All the reasons why a job does not run now, the first to be removed first; never none.

    A job that runs or has finished has one, which says so; so has one that only waits its turn.
    """
    status = facts.record.status
    if status in TERMINAL:
        return (_finished(facts),)
    if status is JobStatus.PROCESSING:
        return (_lost(facts) or _running(facts),)
    if status is JobStatus.QUEUED:
        return tuple(_of_ready(facts)) or (_next(),)
    return tuple(_of_waiting(facts))


def _finished(facts: JobFacts) -> Obstacle:
    record = facts.record
    detail = "" if record.dead_reason is None else f" ({record.dead_reason})"
    if record.dead_reason is DeadReason.SHED:
        detail = " (shed: its queue was full of jobs or bytes, and others were more urgent)"
    at_us = record.finished_us or record.updated_us
    return Obstacle(
        ReasonCode.FINISHED, f"it is over: {record.status}{detail} since {_moment(at_us)}", at_us
    )


def _running(facts: JobFacts) -> Obstacle:
    record = facts.record
    since_us = record.started_us or record.updated_us
    span = span_text(max(0, facts.now_us - since_us))
    text = f"it runs: attempt {record.counters.attempts + 1} at worker {record.worker} for {span}"
    return Obstacle(ReasonCode.RUNNING, text, since_us)


def _lost(facts: JobFacts) -> Obstacle | None:
    """Of a job that counts as running, though its worker has lost it."""
    now_us, owner, held_us = facts.now_us, facts.owner, facts.hold_until_us
    if not is_lost(None if owner is None else owner.expires_us, held_us, now_us):
        return None
    worker = facts.record.worker
    if owner is None:
        told, back_us = f"its worker {worker} is not known any more", now_us
    elif owner.expires_us <= now_us:
        lease_us = owner.expires_us - owner.heard_us
        told = f"its worker {worker} has not been heard of for {_ago(owner.heard_us, now_us)}"
        back_us = taken_back_us(owner.expires_us, lease_us)
    else:
        told, back_us = f"its worker {worker} has held it for too long", now_us
    if not facts.watched:
        end = "no worker lives that could take it back: start one, or cancel the job"
    elif back_us > now_us:
        end = f"it is taken back by {_moment(back_us)} ({_until(back_us, now_us)})"
    else:
        end = "it is taken back in a moment"
    return Obstacle(ReasonCode.WORKER_LOST, f"{told}; {end}", back_us)


def _of_waiting(facts: JobFacts) -> Iterator[Obstacle]:
    """Of a job that is not due: that first, then what will still hold it back when it is."""
    yield _overdue(facts) or _in_step(facts) or _waits_for(facts) or _not_due(facts)
    yield from _paused(facts)
    yield from (_closed(each, facts) for each in facts.closed if each.gate.kind in _LASTING)
    yield from _unserved(facts)


def _of_ready(facts: JobFacts) -> Iterator[Obstacle]:
    overdue = _overdue(facts)
    if overdue is not None:
        yield overdue
    yield from _paused(facts)
    yield from (_closed(each, facts) for each in facts.closed)
    yield from _unserved(facts)
    if facts.suspect:
        yield Obstacle(
            ReasonCode.SUSPECT,
            "it was lost with its worker before, so it waits for a worker that is idle and can "
            "run it alone",
        )
    if facts.background_only and facts.record.priority == Priority.BACKGROUND:
        queue = facts.record.queue
        yield Obstacle(
            ReasonCode.BACKGROUND_ONLY,
            f"it is a background job, and of queue {queue!r} workers take those only while nothing "
            "else waits in the queues they serve",
        )
    if facts.ahead:
        yield _behind(facts)


def _behind(facts: JobFacts) -> Obstacle:
    queue, number = facts.record.queue, facts.ahead
    jobs, come = ("job", "comes") if number == 1 else ("jobs", "come")
    least = "at least " if number >= AHEAD_MAX else ""
    text = f"{least}{number} ready {jobs} of queue {queue!r} {come} before it"
    return Obstacle(ReasonCode.BEHIND, text, count=number)


def _next() -> Obstacle:
    return Obstacle(ReasonCode.READY, "it is ready and next: the next claim takes it")


def _overdue(facts: JobFacts) -> Obstacle | None:
    deadline_us = facts.record.deadline_us
    if deadline_us is None or deadline_us > facts.now_us:
        return None
    text = f"its deadline passed at {_moment(deadline_us)}: it will become dead (expired)"
    return Obstacle(ReasonCode.DEADLINE_PASSED, text, deadline_us)


def _in_step(facts: JobFacts) -> Obstacle | None:
    """Of a job whose handler sleeps, or waits for a signal or a person."""
    step = facts.step
    if facts.record.status is not JobStatus.PENDING:
        return None
    if facts.question is not None:
        since_us = facts.record.updated_us
        text = (
            f"it waits for a person to decide, since {_moment(since_us)}: {facts.question}; "
            "job.approve() or job.decline(), packhorse jobs approve or decline"
        )
        return Obstacle(ReasonCode.NEEDS_HUMAN, text, since_us)
    if step is None:
        return None
    at_us, until = step.until_us, ""
    if at_us is not None:
        until = f" until {_moment(at_us)} ({_until(at_us, facts.now_us)})"
    if step.signal is None:
        return Obstacle(ReasonCode.SLEEPS, f"its step {step.name!r} sleeps{until}", at_us)
    text = f"it waits for the signal {step.signal!r}{until}: job.signal(), packhorse jobs signal"
    return Obstacle(ReasonCode.WAITS_FOR_SIGNAL, text, at_us)


#: What a job may be made to wait for, by the code of its error.
_WAITS: Final = MappingProxyType(
    {"OTHER_VERSION": ReasonCode.PARKED, "breaker_open": ReasonCode.BREAKER_OPEN}
)


def _waits_for(facts: JobFacts) -> Obstacle | None:
    """Of a job that was given back, or gave up for now, for a reason that is known."""
    record, error = facts.record, waits_for(facts.record)
    if error is None or error.code not in _WAITS:
        return None
    text = f"{error.message}; it is tried again at {_due(facts)}"
    return Obstacle(_WAITS[error.code], text, record.due_us)


def _due(facts: JobFacts) -> str:
    due_us = facts.record.due_us
    return f"{_moment(due_us)} ({_until(due_us, facts.now_us)})"


def _not_due(facts: JobFacts) -> Obstacle:
    record, when = facts.record, _due(facts)
    if record.status in RETRY_WAITING:
        text = f"its last attempt ended {record.status}; it is tried again at {when}"
        return Obstacle(ReasonCode.RETRY_WAITS, text, record.due_us)
    return Obstacle(ReasonCode.NOT_DUE, f"it is not due until {when}", record.due_us)


def _paused(facts: JobFacts) -> Iterator[Obstacle]:
    if facts.queue_paused:
        queue = facts.record.queue
        text = f"queue {queue!r} is paused: resume it with 'packhorse queues resume {queue}'"
        yield Obstacle(ReasonCode.QUEUE_PAUSED, text)


#: Closed gates that a job which is not due yet will still meet.
_LASTING: Final = frozenset({GateKind.PAUSE, GateKind.ORDER})


def _closed(closed: ClosedGate, facts: JobFacts) -> Obstacle:
    match closed.gate.kind:
        case GateKind.PAUSE:
            return _gate_paused(closed.gate)
        case GateKind.ORDER:
            text = f"job {_named(closed.jobs)} is before it in its line and must end first"
            return Obstacle(ReasonCode.BEHIND_HEAD, text, jobs=closed.jobs)
        case GateKind.TASK_CONCURRENCY | GateKind.QUEUE_CONCURRENCY:
            return _busy(closed)
        case GateKind.TASK_RATE | GateKind.TENANT_RATE | GateKind.QUEUE_RATE:
            return _limited(closed, facts)
        case _:
            assert_never(closed.gate.kind)


def _gate_paused(gate: Gate) -> Obstacle:
    queue, what, name = gate.name
    code = ReasonCode.TENANT_PAUSED if what == "tenant" else ReasonCode.KEY_PAUSED
    return Obstacle(code, f"{what} {name!r} is paused in queue {queue!r}: resume it")


def _busy(closed: ClosedGate) -> Obstacle:
    text = (
        f"{_subject(closed.gate)} is busy: {closed.running} running, {closed.limit} allowed; "
        f"it waits for job {_named(closed.jobs)}"
    )
    return Obstacle(ReasonCode.CONCURRENCY, text, jobs=closed.jobs, count=closed.running)


def _limited(closed: ClosedGate, facts: JobFacts) -> Obstacle:
    subject, at_us, rule = _subject(closed.gate), closed.reopens_us, closed.rule
    if at_us is not None:
        bound = "" if rule is None else f" ({rule.max} in {span_text(rule.window_us)})"
        when = f"{_moment(at_us)} ({_until(at_us, facts.now_us)})"
        text = f"the rate limit of {subject}{bound} frees at {when}"
        return Obstacle(ReasonCode.RATE_LIMIT, text, at_us)
    most = None if rule is None else rule.max
    text = (
        f"its weight {facts.record.weight} is above the rate limit of {subject}, which lets "
        f"{most} start: it never fits; raise the limit or cancel the job"
    )
    return Obstacle(ReasonCode.RATE_LIMIT, text)


def _subject(gate: Gate) -> str:
    """A gate as people call it."""
    first, *rest = gate.name
    if gate.kind in (GateKind.QUEUE_CONCURRENCY, GateKind.QUEUE_RATE):
        return f"queue {first!r}"
    if gate.kind is GateKind.TENANT_RATE:
        return f"tenant {rest[0]!r} in queue {first!r}"
    return f"key {rest[0]!r} of task {first!r}" if rest else f"task {first!r}"


def _unserved(facts: JobFacts) -> Iterator[Obstacle]:
    record = facts.record
    if record.parked_us is not None:
        text = f"no live worker has known task {record.task!r} since {_moment(record.parked_us)}"
        yield Obstacle(ReasonCode.PARKED, text, record.parked_us)
    elif not facts.served:
        meant = nearest(record.queue, facts.queues)
        hint = "" if meant is None else f"; did you mean {meant!r}?"
        yield Obstacle(ReasonCode.NO_WORKER, f"no live worker serves queue {record.queue!r}{hint}")
    elif not facts.known:
        text = f"no live worker that serves queue {record.queue!r} knows task {record.task!r}"
        yield Obstacle(ReasonCode.UNKNOWN_TASK, text)
    if not facts.awake:
        text = (
            f"every live worker that serves queue {record.queue!r} is quiet and claims nothing: "
            "let them go on with 'packhorse workers resume'"
        )
        yield Obstacle(ReasonCode.WORKERS_QUIET, text)


def _named(jobs: tuple[str, ...]) -> str:
    return ", ".join(jobs) or "of another tenant"


def _moment(instant_us: int) -> str:
    return to_datetime(instant_us).isoformat().replace("+00:00", "Z")


def _ago(instant_us: int, now_us: int) -> str:
    return span_text(max(0, now_us - instant_us))


def _until(instant_us: int, now_us: int) -> str:
    return f"in {span_text(max(0, instant_us - now_us))}"
