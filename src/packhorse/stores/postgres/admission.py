# SPDX-License-Identifier: MIT
"""Submit: plain jobs in one statement or beside others; then those about which more decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from packhorse.job import NewJob
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.postgres.dialect import POSTGRES
from packhorse.stores.postgres.locking import Level, Memory, Special
from packhorse.stores.postgres.plain_submit import short_submit, submit_in_one
from packhorse.stores.postgres.submitting import is_plain, store_plain
from packhorse.stores.requests import Submitted
from packhorse.stores.sql.admission import one_by_one, shed_after
from packhorse.stores.sql.keys import keys_wanted
from packhorse.stores.sql.rows import json_text, payload_text
from packhorse.stores.sql.submitting import is_keyed, store_all

__all__ = ["submit_plan"]


def submit_plan(jobs: Sequence[NewJob], memory: Memory) -> Plan[tuple[Submitted, ...]]:
    """All or none; see `JobStore.submit`. Plain jobs go beside others, and in one if alike."""
    short = short_submit(jobs, memory)
    if short is not None:  # plain jobs, which want no keys
        plain = Level(memory)
        one = partial(submit_in_one, jobs, plain)
        return Plan("submit", partial(_submit, jobs, plain), look=one, short=short)
    level = Level(memory, keys=[key for job in jobs for key in _keys_of(job)])
    level.expect([job.queue for job in jobs])
    return Plan("submit", partial(_submit, jobs, level))


def _submit(jobs: Sequence[NewJob], level: Level) -> Steps[tuple[Submitted, ...]]:
    if not jobs:
        return ()
    special: Special = yield from level.enter()
    level.allow([job.queue for job in jobs])
    limited = any(job.task in special.tasks for job in jobs)
    if level.plain and not limited and all(is_plain(job) for job in jobs):
        answers: tuple[Submitted, ...] = yield from store_plain(jobs)
    else:
        answers = yield from _submit_special(jobs, level)
    return answers


def _keys_of(job: NewJob) -> Iterable[str]:
    """The keys a job wants, as locks."""
    for kind, identity in keys_wanted(job):
        yield json_text((kind, *identity))


def _submit_special(jobs: Sequence[NewJob], level: Level) -> Steps[tuple[Submitted, ...]]:
    """Jobs without keys of their own go in one batch."""
    for job in jobs:
        payload_text(job)  # judged before anything that depends on other jobs
    if any(is_keyed(job) for job in jobs):
        answers: tuple[Submitted, ...] = yield from one_by_one(POSTGRES, jobs, level)
        return answers
    queues = yield from POSTGRES.queue_rows(dict.fromkeys([job.queue for job in jobs]))
    answers = yield from store_all(POSTGRES, jobs, queues, level)
    if any(row.drops for row in queues.values()):
        answers = yield from shed_after(POSTGRES, jobs, answers, level)
    return answers
