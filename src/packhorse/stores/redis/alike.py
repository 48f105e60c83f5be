# SPDX-License-Identifier: MIT
"""Submit, the short way: jobs of one kind, with what they share told once.

Nothing about them but id, payload and definition differs, and nothing about them matters to
anybody else: they are due now, and have no keys, deadline, tenant or weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import Final

from packhorse.errors import PayloadError
from packhorse.job import NewJob
from packhorse.stores.redis.packing import Argument, Packed, packed
from packhorse.stores.redis.rows import definition_of, new_state, own_trace_id
from packhorse.stores.redis.statements import Script

__all__ = ["alike_script", "refuse_binary"]

#: What jobs of a kind share.
_KIND: Final = ("queue", "task", "priority", "timeout_us")
#: What must be so, or the job matters to others.
_PLAIN: Final[Mapping[str, object]] = MappingProxyType(
    {
        "delay_us": 0,
        "scheduled_us": None,
        "deadline_us": None,
        "unique": None,
        "idempotency": None,
        "tenant": "",
        "weight": 1,
        "ordering_key": None,
        "concurrency_key": None,
        "rate_key": None,
    }
)
#: What else a definition says, and what it says of most jobs.
_DETAILS: Final[Mapping[str, object]] = MappingProxyType(
    {"tags": (), "options": None, "upstream_request_id": None, "created_by": None}
)
_kind_of: Final = attrgetter(*_KIND)
_limits_of: Final = attrgetter(*_PLAIN)
_details_of: Final = attrgetter(*_DETAILS)
_all_of: Final = attrgetter(*_KIND, *_PLAIN, *_DETAILS)
_NO_LIMITS: Final = (*_PLAIN.values(),)
_NO_DETAILS: Final = (*_DETAILS.values(),)
#: Kinds of jobs whose arguments are remembered; beyond them they are made again.
_KINDS_MAX: Final = 1024


def alike_script(jobs: Sequence[NewJob]) -> Script | None:
    """What stores these jobs the short way; None when they are not of one kind, or not plain."""
    first = jobs[0]
    if _limits_of(first) != _NO_LIMITS:
        return None
    if len(jobs) == 1:
        refuse_binary(jobs)
        return Script("submit_one", _head(first) + packed((first.id, first.payload)))
    return _many(jobs)


def refuse_binary(jobs: Sequence[NewJob]) -> None:
    """Refuse payloads that are no text: they could be stored, and not be shown."""
    for new in jobs:
        try:
            new.payload.decode()
        except UnicodeDecodeError:
            raise PayloadError(
                f"the payload of job {new.id} is not UTF-8 text; nothing was stored: "
                "payloads are JSON"
            ) from None


def _many(jobs: Sequence[NewJob]) -> Script | None:
    first, ids = jobs[0], [new.id for new in jobs]
    alike = all(map(_all_of(first).__eq__, map(_all_of, jobs)))
    if len(set(ids)) < len(ids) or not (alike or _are_of_one_kind(jobs)):
        return None
    refuse_binary(jobs)
    args: list[Argument] = []
    if alike and [new.trace_id for new in jobs] == [*map(own_trace_id, ids)]:
        for new in jobs:
            args += (new.id, new.payload)
        return Script("submit_alike", _head(first) + packed(args))
    for new in jobs:
        args += (new.id, new.payload, definition_of(new))
    return Script("submit_alike", _begun(*_kind_of(first)) + packed((b"", *args)))


def _are_of_one_kind(jobs: Sequence[NewJob]) -> bool:
    kind = _kind_of(jobs[0])
    return all(_kind_of(new) == kind and _limits_of(new) == _NO_LIMITS for new in jobs)


def _head(new: NewJob) -> Packed:
    """The arguments before the jobs that share this one's definition."""
    if _details_of(new) == _NO_DETAILS and new.trace_id == own_trace_id(new.id):
        return _plain_head(*_kind_of(new))
    return _begun(*_kind_of(new)) + packed((definition_of(new),))


@lru_cache(_KINDS_MAX)
def _plain_head(queue: str, task: str, priority: int, timeout_us: int | None) -> Packed:
    example = NewJob("", task, b"", queue, priority=priority, timeout_us=timeout_us)
    return _begun(queue, task, priority, timeout_us) + packed((definition_of(example),))


@lru_cache(_KINDS_MAX)
def _begun(queue: str, task: str, priority: int, timeout_us: int | None) -> Packed:
    """Queue, priority, the name of their line as `lua/lib/keys.lua` has it, and their state."""
    line = f"{len(queue.encode())}:{queue}{len(task.encode())}:{task}"
    state = new_state(queue, task, int(priority), timeout_us)
    return packed((queue, int(priority), line, state))
