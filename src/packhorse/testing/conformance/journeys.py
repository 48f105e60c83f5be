# SPDX-License-Identifier: MIT
"""Carry jobs between a store and the reference store; jobs in every possible state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from packhorse.core.clock import SECOND_US
from packhorse.core.job import (
    IdempotencyRule,
    Job,
    JobOptions,
    NewJob,
    OnConflict,
    Priority,
    Progress,
    RetryRule,
    UniqueRule,
)
from packhorse.core.policies.attachments import Attaching
from packhorse.core.settlement import SettlementKind, Verdict
from packhorse.stores.requests import ProgressNote, QueueSettings
from packhorse.stores.transfer import CarriedJob, CarryAnswer
from packhorse.testing.conformance.harness import ReferenceHarness
from packhorse.testing.conformance.samples import ANNA, BEN, new_job, settlement_of
from packhorse.testing.conformance.trial import EVERYTHING, Trial
from packhorse.testing.conformance.words import limit_queue, redrive, submit

#: The queues of the examples.
QUEUES: Final = ("default", "lines", "shared", "ageing", "shelved", "keyed")
_HOUR_US: Final = 3600 * SECOND_US


class Journey:
    """A transfer from one store to another; both use the same clock."""

    def __init__(self, source: Trial, target: Trial) -> None:
        self.source = source
        self.target = target

    def carry(self, *, limit: int = 3) -> list[CarryAnswer]:
        """Carry everything over, a page at a time."""
        answers: list[CarryAnswer] = []
        for page in _pages(self.source, limit):
            told = self.target.run(self.target.store.transfer.carry_in(page))
            answers.extend(told)
        return answers


def shown(trial: Trial, limit: int = EVERYTHING) -> list[CarriedJob]:
    """Return everything that a store would carry out."""
    return [job for page in _pages(trial, limit) for job in page]


def _pages(trial: Trial, limit: int) -> Iterator[Sequence[CarriedJob]]:
    after: str | None = None
    for _ in range(EVERYTHING):
        page = trial.run(trial.store.transfer.carry_out(after=after, limit=limit))
        assert len(page.jobs) <= limit
        yield page.jobs
        after = page.after
        if after is None:
            return
    raise AssertionError("the pages have no end")


@contextmanager
def journeys(trial: Trial, direction: str) -> Iterator[Journey]:
    """Yield a transfer to the reference store, or from it."""
    reference = Trial(ReferenceHarness(trial.clock), trial.clock, "run")
    try:
        yield Journey(trial, reference) if direction == "out" else Journey(reference, trial)
    finally:
        reference.close()


# -------------------------------------------------------------------------------- what is carried


def colourful(trial: Trial) -> None:
    """Make jobs in every state that is carried, and some that are not; none is running."""
    _declare(trial)
    trial.make_suspect(new_job("suspect"))
    for kind in (SettlementKind.DEAD, SettlementKind.COMPLETED, SettlementKind.CANCELLED):
        trial.finish(new_job(f"was-{kind}", queue="shelved"), kind)
    trial.run(trial.store.jobs.submit([new_job("too late", deadline_us=trial.now_us() + 1)]))
    trial.advance_us(SECOND_US)
    trial.run(trial.store.upkeep.expire(limit=EVERYTHING))
    _retrying(trial)
    _attached(trial)
    trial.submit(*_decorated(trial.now_us()))
    lined(trial)
    tenanted(trial)
    submit(trial, "old", queue="ageing", priority=Priority.LOW)
    trial.advance_us(SECOND_US)
    submit(trial, "new", queue="ageing", priority=Priority.HIGH)
    _keyed(trial)
    redrive(trial, "later")


def _declare(trial: Trial) -> None:
    trial.declare(
        QueueSettings("lines", on_dead="hold"),
        QueueSettings("ageing", fair=False, ageing_us=60 * SECOND_US),
        QueueSettings("shelved", dead_letter="shelf"),
    )


def _decorated(now_us: int) -> list[NewJob]:
    """Make jobs with every option of a submit."""
    options = JobOptions(retry=RetryRule(max_retries=7, multiplier=1.5), max_snoozes=3)
    said = {
        "tags": ("red", "grün"),
        "options": options,
        "trace_id": "trace",
        "upstream_request_id": "request",
        "created_by": "anna",
        "timeout_us": 7 * SECOND_US,
        "payload": '{"to":"Zürich"}'.encode(),
    }
    return [
        new_job("plain"),
        new_job("said", **said, priority=Priority.CRITICAL),
        new_job(
            "bounded",
            deadline_us=now_us + 9 * _HOUR_US,
            concurrency_key="c",
            rate_key="r",
            weight=3,
        ),
        new_job("later", delay_us=5 * _HOUR_US),
        new_job("much later", delay_us=9 * _HOUR_US, priority=Priority.HIGH),
        new_job("background", priority=Priority.BACKGROUND),
    ]


def _retrying(trial: Trial) -> None:
    """Make jobs that ran and wait again, with a history."""
    kinds = (SettlementKind.FAILED, SettlementKind.TIMEOUT, SettlementKind.SNOOZED)
    for kind in (*kinds, SettlementKind.RELEASED):
        job = trial.take(new_job(f"again-{kind}", queue="shelved"), worker=BEN)
        note = ProgressNote(job.id, job.fence, Progress(1.5, 3, "half"))
        trial.run(trial.store.jobs.note_progress([note]))
        trial.end(job, kind)
        if kind is SettlementKind.RELEASED:  # ready again, so it would be taken instead of others
            trial.end(trial.claim_only(queues=("shelved",)), SettlementKind.FAILED)


def _attached(trial: Trial) -> None:
    """Make dead and waiting jobs with attachments, one of them waiting for a signal."""
    kept = trial.store.attachments
    for name, kind in (("attached", SettlementKind.DEAD), ("signalled", SettlementKind.SNOOZED)):
        job = trial.take(new_job(name, queue="shelved"))
        values = {"a": bytes(range(256)), "ü": b""}
        attaching = [Attaching(name, job.fence, values)]
        assert trial.run(kept.attach(attaching)) == (Verdict.APPLIED,)
        settled = settlement_of(kind, job)
        waits = 0 if kind is SettlementKind.SNOOZED else None
        trial.settle(msgspec.structs.replace(settled, waits=waits))
    submit(trial, "scheduled", queue="shelved", delay_us=_HOUR_US)
    for number in range(12):
        trial.run(kept.deliver("scheduled", "n", b"%d" % number, delivery=number))


def lined(trial: Trial) -> None:
    """Make ordered lines: one with a redriven job at its tail, one that a dead job holds."""
    submit(trial, "a1", "a2", "a3", queue="default", ordering_key="a")
    first = _take(trial, "a1")
    trial.end(first, SettlementKind.DEAD)
    redrive(trial, "a1")  # to the tail of its line
    submit(trial, "h1", "h2", queue="lines", ordering_key="h")
    trial.end(trial.claim_only(queues=("lines",)), SettlementKind.DEAD)


def _take(trial: Trial, job_id: str) -> Job:
    """Claim all jobs of the default queue, and give back those not wanted."""
    wanted, *others = sorted(trial.claim(), key=lambda job: (job.id != job_id, job.id))
    for other in others:
        trial.end(other, SettlementKind.RELEASED)
    return wanted


def tenanted(trial: Trial) -> None:
    """Make a queue that tenants share, one of them with a weight."""
    limit_queue(trial, "shared", weights={"acme": 2.0})
    submit(trial, "n1", "n2", queue="shared")
    submit(trial, "a-1", "a-2", "a-3", "a-4", queue="shared", tenant="acme")
    submit(trial, "b-1", "b-2", queue="shared", tenant="beta")


def _keyed(trial: Trial) -> None:
    """Make keys held by waiting jobs, one that another job took over, and a stashed one."""
    latest = UniqueRule("k", on_conflict=OnConflict.KEEP_LATEST)
    submit(trial, "unique", unique=UniqueRule("u"), tenant="acme")
    same = IdempotencyRule("i", digest="d", window_us=_HOUR_US)
    submit(trial, "same", idempotency=same, queue="lines")
    submit(trial, "holder", queue="keyed", unique=latest)
    holder = trial.claim_only(ANNA, queues=("keyed",))
    submit(trial, "stashed", queue="keyed", unique=latest, delay_us=SECOND_US)
    trial.end(holder, SettlementKind.FAILED)
