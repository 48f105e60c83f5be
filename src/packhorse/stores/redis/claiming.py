# SPDX-License-Identifier: MIT
"""Claim: what a worker asks for, and what it is given."""

from __future__ import annotations

from typing import Any, Final

from packhorse.job import Job
from packhorse.stores.plan import Steps
from packhorse.stores.redis.rows import (
    Definition,
    State,
    as_claimed,
    read_definition,
    read_state,
)
from packhorse.stores.redis.short_way import ShortWay
from packhorse.stores.redis.statements import Script
from packhorse.stores.requests import Claimed, ClaimRequest

__all__ = ["claim_steps"]

#: Scripts of one claim: each sets aside a bounded number of lines that are held back.
_LOOKS_MAX: Final = 100
#: Where an answer says that there may be more, where its jobs begin, and the parts of each.
_MORE, _JOBS, _PARTS = 4, 5, 4


def claim_steps(request: ClaimRequest, short: ShortWay) -> Steps[Claimed]:
    """One script, or a few when very much is held back; see `JobStore.claim`."""
    if not request.quarantine and short.worth_trying(request.queues):
        reply = yield Script("claim_plain", _arguments(request, request.limit))
        if reply is not None:
            return _claimed(reply, _jobs_of(reply))
        short.closed(request.queues)
    reply = yield Script("claim", _arguments(request, request.limit))
    jobs = _jobs_of(reply)
    for _ in range(_LOOKS_MAX):
        if not reply[_MORE]:
            break
        reply = yield Script("claim", _arguments(request, request.limit - len(jobs)))
        jobs += _jobs_of(reply)
    return _claimed(reply, jobs)


def _jobs_of(reply: list[Any]) -> list[Job]:
    """The jobs of an answer; what several of them share is read once."""
    states: dict[bytes, State] = {}
    definitions: dict[bytes, Definition] = {}
    jobs: list[Job] = []
    for at in range(_JOBS, len(reply), _PARTS):
        job_id, packed, defined, payload = reply[at : at + _PARTS]
        state, definition = states.get(packed), definitions.get(defined)
        if state is None:
            state = states[packed] = read_state(packed)
        if definition is None:
            definition = definitions[defined] = read_definition(defined)
        jobs.append(as_claimed(job_id.decode(), state, definition, payload.decode()))
    return jobs


def _claimed(reply: list[Any], jobs: list[Job]) -> Claimed:
    now_us, next_due_us, suspects, lease_lost = reply[:_MORE]
    return Claimed(
        jobs=tuple(jobs),
        now_us=now_us,
        next_due_us=None if next_due_us == -1 else next_due_us,
        suspects=bool(suspects),
        lease_lost=bool(lease_lost),
    )


def _arguments(request: ClaimRequest, limit: int) -> list[str | int]:
    return [
        request.worker,
        max(0, limit),
        request.default_timeout_us,
        int(request.quarantine),
        len(request.queues),
        *request.queues,
        *request.tasks,
    ]
