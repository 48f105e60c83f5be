# SPDX-License-Identifier: MIT
"""Submit: new jobs as a script takes them, and its refusals in the words of a caller."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NoReturn

import msgspec

from packhorse.errors import (
    ConfigError,
    IdempotencyMismatch,
    QueueClosed,
    QueueFull,
)
from packhorse.job import JobStatus, NewJob, RateRule
from packhorse.policies.rate_limit import check_weight
from packhorse.stores.plan import Steps
from packhorse.stores.redis.alike import alike_script, refuse_binary
from packhorse.stores.redis.packing import Argument
from packhorse.stores.redis.rows import STATUS, definition_of, signature_of
from packhorse.stores.redis.short_way import ShortWay
from packhorse.stores.redis.statements import Script
from packhorse.stores.requests import Submitted

__all__ = ["SUBMITTED_MAX", "arguments_of", "submit_steps"]

#: Jobs that one submit may bring: they are stored at once, and nobody else is served meanwhile.
SUBMITTED_MAX: Final = 20_000

_pack: Final = msgspec.msgpack.Encoder().encode


def submit_steps(jobs: Sequence[NewJob], short: ShortWay) -> Steps[tuple[Submitted, ...]]:
    """All or none, in one script; see `JobStore.submit`."""
    if not jobs:
        return ()
    if len(jobs) > SUBMITTED_MAX:
        raise ConfigError(
            f"{len(jobs)} jobs were submitted in one call, and Redis stores at most "
            f"{SUBMITTED_MAX} at once; nothing was stored: submit them in parts"
        )
    if short.worth_trying(jobs[0].queue) and (alike := alike_script(jobs)) is not None:
        reply = yield alike
        if reply == b"ok":
            queued = JobStatus.QUEUED
            return tuple([Submitted(new.id, deduplicated=False, status=queued) for new in jobs])
        if reply == b"careful":
            short.closed(jobs[0].queue)
    refuse_binary(jobs)
    args: list[Argument] = []
    for new in jobs:
        args += arguments_of(new)
    reply = yield Script("submit", args)
    while reply[0] == b"deal":
        yield from _deal(reply[1])
        reply = yield Script("submit", args)
    problem = reply[0].decode()
    if problem != "ok":
        _refuse(problem, reply[1:], jobs)
    return tuple(_answer(new, answer) for new, answer in zip(jobs, reply[1:], strict=True))


def _deal(queue: bytes) -> Steps[None]:
    """Give passes to what is ready in a queue whose first job with a tenant comes, in parts."""
    more = True
    while more:
        more = yield Script("deal", [queue])


def arguments_of(new: NewJob) -> tuple[Argument, ...]:
    """The eleven parts of `lua/lib/entering.lua`."""
    check_weight(new.weight)
    ruled = new.unique is not None or new.idempotency is not None
    due = f"+{new.delay_us}" if new.scheduled_us is None else f"={new.scheduled_us}"
    return (
        new.id,
        definition_of(new),
        new.payload,
        new.queue,
        new.task,
        int(new.priority),
        signature_of(new),
        due,
        "" if new.deadline_us is None else new.deadline_us,
        "" if new.timeout_us is None else new.timeout_us,
        _pack((new.tenant, new.unique, new.idempotency)) if ruled else b"",
    )


def _answer(new: NewJob, answer: Any) -> Submitted:
    if type(answer) is int:
        return Submitted(new.id, deduplicated=False, status=STATUS[answer])
    job_id, status = answer
    return Submitted(job_id.decode(), deduplicated=True, status=STATUS[status])


# ---------------------------------------------------------------------------------- refusals


def _refuse(problem: str, told: Sequence[Any], jobs: Sequence[NewJob]) -> NoReturn:
    _REFUSALS[problem](told, jobs)
    raise AssertionError(f"the store refused a submit as {problem}, and could not say why")


def _shelf(told: Sequence[Any], _jobs: Sequence[NewJob]) -> None:
    job_id, queue, shelf_of = (part.decode() for part in told)
    raise ConfigError(
        f"job {job_id} was submitted to {queue!r}, which is the dead-letter shelf of "
        f"queue {shelf_of!r}; nothing was stored: submit to another queue"
    )


def _closed(told: Sequence[Any], _jobs: Sequence[NewJob]) -> None:
    raise QueueClosed(told[0].decode())


def _heavy(told: Sequence[Any], _jobs: Sequence[NewJob]) -> None:
    weight, most, window_us = told
    check_weight(weight, [RateRule(most, window_us)])


def _mismatch(told: Sequence[Any], jobs: Sequence[NewJob]) -> None:
    job_id, key = told[0].decode(), told[1].decode()
    task = next(
        new.task for new in jobs if new.idempotency is not None and new.idempotency.key == key
    )
    raise IdempotencyMismatch(
        f"idempotency key {key!r} of task {task!r} belongs to job {job_id}, which "
        "has another payload; nothing was stored: give each payload a key of its own",
        job_id=job_id,
    )


def _full(told: Sequence[Any], _jobs: Sequence[NewJob]) -> None:
    queue, depth, limit = told
    raise QueueFull(queue.decode(), depth=depth, limit=limit)


_REFUSALS: Final[Mapping[str, Callable[[Sequence[Any], Sequence[NewJob]], None]]] = (
    MappingProxyType(
        {
            "shelf": _shelf,
            "closed": _closed,
            "heavy": _heavy,
            "mismatch": _mismatch,
            "full": _full,
        }
    )
)
