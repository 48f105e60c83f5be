# SPDX-License-Identifier: MIT
"""Taking over jobs from another store: as a script takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from packhorse.errors import ConfigError
from packhorse.job import JobStatus
from packhorse.stores.plan import Steps
from packhorse.stores.redis.packing import Argument
from packhorse.stores.redis.rows import CODE, attempt_line, definition_of, signature_of
from packhorse.stores.redis.statements import Script
from packhorse.stores.redis.submitting import SUBMITTED_MAX, arguments_of
from packhorse.stores.transfer import CarriedJob, CarryAnswer, deals_passes, highest_number

__all__ = ["carry_in_steps"]

_pack: Final = msgspec.msgpack.Encoder().encode


def carry_in_steps(jobs: Sequence[CarriedJob]) -> Steps[tuple[CarryAnswer, ...]]:
    """All in one script; see `TransferStore.carry_in`."""
    if not jobs:
        return ()
    if len(jobs) > SUBMITTED_MAX:
        raise ConfigError(
            f"{len(jobs)} jobs were carried in one call, and Redis stores at most "
            f"{SUBMITTED_MAX} at once; nothing was stored: carry them in parts"
        )
    args: list[Argument] = [highest_number(jobs)]
    for carried in jobs:
        args += _arguments(carried)
    answers = yield Script("carry_in", args)
    return tuple([CarryAnswer(answer.decode()) for answer in answers])


def _arguments(carried: CarriedJob) -> list[Argument]:
    """What `lua/carry_in.lua` wants to know of one job."""
    job, fields = carried.job, _fields(carried)
    flags = (carried.took_unique, carried.took_idempotency, deals_passes(carried))
    stashed = () if carried.stashed is None else arguments_of(carried.stashed)
    state = {name: value for name, value in _state(carried).items() if value is not None}
    return [
        *(job.id, definition_of(job), job.payload, _pack(state)),
        "".join("1" if each else "0" for each in flags),
        *(len(fields), *fields),
        *(len(stashed), *stashed),
    ]


def _fields(carried: CarriedJob) -> list[Argument]:
    """What is kept beside the state, as name and value."""
    fields: list[Argument] = []
    for name, value in (("e", carried.error), ("o", carried.progress)):
        if value is not None:
            fields += (name, msgspec.json.encode(value))
    for line in carried.history:
        fields += (f"a{line.attempt}", attempt_line(line))
    return fields


def _state(carried: CarriedJob) -> dict[str, Any]:
    """The state in the words of `lua/lib/jobs.lua`; what is None is not there."""
    job, standing, finished_us = carried.job, carried.standing, carried.finished_us
    expires_us, dead = carried.expires_us, carried.status is JobStatus.DEAD
    state: dict[str, Any] = {
        **msgspec.structs.asdict(carried.counters),
        "status": CODE[carried.status],
        "fence": carried.fence,
        "updated": carried.updated_us,
        "worker": carried.worker,
        "started": carried.started_us,
        "hold": 0,
        "timeout": job.timeout_us,
        "deadline": job.deadline_us,
        "cancel": carried.cancel_requested or None,
        "suspect": carried.suspect or None,
        "finished": finished_us,
        "keep": None if expires_us is None else expires_us - (finished_us or 0),
        "expires": expires_us,
        "queue": job.queue,
        "task": job.task,
        "sig": signature_of(job),
        "keyed": job.unique is not None or job.idempotency is not None or None,
        "priority": int(job.priority),
        "created": carried.created_us,
        "due": carried.due_us,
        "line": carried.line_number,
        "dead_reason": carried.dead_reason,
        "dead_letter": carried.dead_letter,
        "holds_line": (dead and carried.line_number is not None) or None,
        "ready": 0,
        "rank": int(job.priority),
        "pass": 0,
    }
    if standing is not None:
        rank = int(job.priority) if standing.aged is None else standing.aged
        state |= {"place": standing.place, "ready": standing.ready_us, "rank": rank}
        state["pass"] = standing.pass_number
    return state
