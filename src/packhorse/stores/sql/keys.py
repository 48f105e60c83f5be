# SPDX-License-Identifier: MIT
"""Unique and idempotency keys: which job holds one, and how a job takes it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from packhorse.core.job import JobStatus, NewJob
from packhorse.core.policies.uniqueness import Identity, holds_idempotency_key, holds_unique_key
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.sql.dialect import Dialect
from packhorse.stores.sql.rows import STATUS, Extra, read_extra
from packhorse.stores.sql.statements import NOW, Rows, Send, SendMany


class Holder(NamedTuple):
    """The last job that took a key: a row of `key_holder`."""

    seq: int
    id: str
    status: int
    created_us: int
    queue: str
    priority: int
    tenant: str
    suspect: bool
    extra: str | None
    finished_us: int | None


def leave_ready(queue: str, status: int) -> Steps[None]:
    """Let claims look again if a job is ready: they skip rows that are locked, and this one was."""
    if STATUS[status] is JobStatus.QUEUED:
        yield Wake(f"queue:{queue}")


def holder_of(dialect: Dialect, kind: str, identity: Identity | None) -> Steps[Holder | None]:
    """Return the job that holds a key, by the rule of that job."""
    now_us: int = yield NOW
    last = yield from last_holder(dialect, kind, identity)
    return last if last is not None and holds(kind, last, now_us) else None


def last_holder(dialect: Dialect, kind: str, identity: Identity | None) -> Steps[Holder | None]:
    """Return the last job that took a key, whether or not it still holds it."""
    if identity is None:
        return None
    rows = yield Rows(dialect.sql("key_holder"), (kind, *identity))
    return Holder(*rows[0]) if rows else None


def holds(kind: str, holder: Holder, now_us: int) -> bool:
    """Whether the last job that took a key still holds it, by its own rule."""
    extra, status, created_us = read_extra(holder.extra), STATUS[holder.status], holder.created_us
    if kind == "unique":
        rule = extra.unique
        return rule is not None and holds_unique_key(
            rule, status, created_us=created_us, now_us=now_us
        )
    same = extra.idempotency
    return same is not None and holds_idempotency_key(
        same, status, created_us=created_us, now_us=now_us
    )


def identities_of(tenant: str, task: str, extra: Extra) -> list[tuple[str, Identity]]:
    """Return the keys of a stored job, with their kinds."""
    found: list[tuple[str, Identity]] = []
    if extra.unique is not None:
        found.append(("unique", (tenant, task, extra.unique.key)))
    if extra.idempotency is not None:
        found.append(("idempotency", (tenant, task, extra.idempotency.key)))
    return found


def keys_wanted(job: NewJob) -> list[tuple[str, Identity]]:
    """Return the keys of a job that is not stored yet, with their kinds."""
    wants = Extra(unique=job.unique, idempotency=job.idempotency)
    return identities_of(job.tenant, job.task, wants)


def take_keys(
    dialect: Dialect, job_id: str, identities: Sequence[tuple[str, Identity]]
) -> Steps[None]:
    """Make a job the holder of its keys, and drop a job stashed behind the last holder."""
    for kind, identity in identities:
        if kind == "unique":
            yield Send(dialect.sql("stash_outdated"), identity)
        yield Send(dialect.sql("key_take"), (kind, *identity, job_id))


def never_taken(dialect: Dialect, jobs: Sequence[NewJob]) -> Steps[bool]:
    """Whether no job ever took a key of these jobs, and no two of them share one.

    Lock the jobs that took them, if there are several, in the order in which settlements do.
    """
    wanted = [key for job in jobs for key in keys_wanted(job)]
    alike: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for kind, (tenant, task, key) in dict.fromkeys(wanted):
        alike[kind, tenant, task].append(key)
    takers: set[int] = set()
    for where, keys in alike.items():
        rows = yield Rows(dialect.sql("keys_taken"), (*where, dialect.many(keys)))
        takers.update(seq for (seq,) in rows)
    if len(takers) > 1:
        yield Rows(dialect.sql("takers_lock"), (dialect.many(list(takers)),))
    return not takers and len(wanted) == len(set(wanted))


def take_new_keys(dialect: Dialect, jobs: Sequence[NewJob]) -> Steps[None]:
    """Make jobs just stored the holders of their keys, which were `never_taken`."""
    rows = [(kind, *identity, job.id) for job in jobs for kind, identity in keys_wanted(job)]
    yield SendMany(dialect.sql("key_take"), rows)
