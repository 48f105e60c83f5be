# SPDX-License-Identifier: MIT
"""Keys that belong to one job at a time: who holds one, and who waits for the holder to end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from packhorse.job import NewJob
from packhorse.policies.uniqueness import (
    Identity,
    holds_idempotency_key,
    holds_unique_key,
    idempotency_identity,
)
from packhorse.stores.plan import Steps
from packhorse.stores.postgres.locking import Level
from packhorse.stores.postgres.queue_settings import QueueRow, queue_rows
from packhorse.stores.postgres.rows import STATUS, Extra, read_extra
from packhorse.stores.postgres.statements import NOW, Rows, Send, sql
from packhorse.stores.postgres.submitting import insert_jobs, known_jobs

__all__ = ["Holder", "enter_stashed", "holder_of", "identities_of", "take_keys"]


class Holder(NamedTuple):
    """The last job that took a key, as `key_holder.sql` sees it."""

    seq: int
    id: str
    status: int
    created_us: int
    queue: str
    priority: int
    tenant: str
    suspect: bool
    extra: str | None


def holder_of(kind: str, identity: Identity | None) -> Steps[Holder | None]:
    """The job that holds a key, by its own rule."""
    if identity is None:
        return None
    now_us: int = yield NOW
    rows = yield Rows(sql("key_holder"), (kind, *identity))
    if not rows:
        return None
    holder = Holder(*rows[0])
    return holder if _holds(kind, holder, now_us) else None


def _holds(kind: str, holder: Holder, now_us: int) -> bool:
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
    """The keys of a stored job, with their kinds."""
    found: list[tuple[str, Identity]] = []
    if extra.unique is not None:
        found.append(("unique", (tenant, task, extra.unique.key)))
    if extra.idempotency is not None:
        found.append(("idempotency", (tenant, task, extra.idempotency.key)))
    return found


def take_keys(job_id: str, identities: Sequence[tuple[str, Identity]]) -> Steps[None]:
    """Become the holder of one's keys; whoever waited behind the last holder is outdated."""
    for kind, identity in identities:
        if kind == "unique":
            yield Send(sql("stash_outdated"), identity)
        yield Send(sql("key_take"), (kind, *identity, job_id))


def enter_stashed(seqs: Sequence[int]) -> Steps[None]:
    """Submit the jobs that waited until the holders of their keys ended.

    They were let in when they came, so neither depth nor a closed queue keeps them out now. One
    that came in some other way meanwhile, by its id or its idempotency key, is there already.
    """
    rows = yield Rows(sql("stash_take"), (list(seqs),))
    stashed = dict(rows)
    if not stashed:
        return
    level = Level(alone=True)
    yield from level.enter()
    now_us: int = yield NOW
    for seq in [seq for seq in seqs if seq in stashed]:
        job = msgspec.json.decode(stashed[seq], type=NewJob)
        known = yield from known_jobs([job])
        same: Holder | None = yield from holder_of("idempotency", idempotency_identity(job))
        if known or same is not None:
            continue
        queues: dict[str, QueueRow] = yield from queue_rows([job.queue])
        unbounded = {name: row.without_depth() for name, row in queues.items()}
        yield from insert_jobs([job], unbounded, now_us, level)
        wants = Extra(unique=job.unique, idempotency=job.idempotency)
        yield from take_keys(job.id, identities_of(job.tenant, job.task, wants))
