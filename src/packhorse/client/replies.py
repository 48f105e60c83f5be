# SPDX-License-Identifier: MIT
"""Turn a store's answers about one job into values, or errors that say what to do."""

from __future__ import annotations

from typing import assert_never

from packhorse.core.approvals import DECLINED, RESERVED, Consent
from packhorse.core.budgets import SPENT
from packhorse.core.job import TERMINAL, JobRecord
from packhorse.core.keys import digest
from packhorse.core.lifecycle import CancelAnswer
from packhorse.core.options import name_text
from packhorse.core.policies.attachments import SIGNALS_MAX, Attachments
from packhorse.core.results import ResultCodec
from packhorse.errors import JobConflict, JobNotFound, UsageError
from packhorse.stores.attachments import DeliverAnswer
from packhorse.stores.requests import RedriveAnswer


def forgotten(*, reset_budget: bool) -> tuple[str, ...]:
    """Return the attachments that a redriven job loses.

    A declined job asks again; spent budget stays spent, unless an operator resets it.
    """
    return (DECLINED, SPENT) if reset_budget else (DECLINED,)


def consent_of(record: JobRecord, kept: Attachments | None) -> Consent:
    """Return what a job asks a person; `JobConflict` if there is nothing to decide."""
    if kept is None:
        raise JobNotFound(record.id)
    consent = Consent(kept)
    given = consent.answer
    if given is not None:
        word = "approved" if given.approved else "declined"
        raise JobConflict(
            f"job {record.id} was {word} by {given.by} at {given.at:%Y-%m-%dT%H:%M:%SZ} already: "
            "nothing was changed",
            job_id=record.id,
        )
    if record.status in TERMINAL:
        raise JobConflict(
            f"job {record.id} is {record.status}: there is nothing to decide any more",
            job_id=record.id,
        )
    return consent


def signal_text(name: str, value: object, key: str | None) -> tuple[bytes, int]:
    """Return a signal as it is delivered, and the number that one with a key has again."""
    if name.startswith(RESERVED):
        raise UsageError(f"signal {name!r}: names that begin with {RESERVED!r} are reserved")
    text = ResultCodec.of_function(f"signal {name!r}").encode(value).encode()
    if key is None:
        return text, 0
    key = name_text(key, f"signal {name!r}: idempotency_key")
    return text, int(digest(name, key)[:15], 16)


def signalled(job_id: str, name: str, answer: DeliverAnswer) -> None:
    """Raise unless the signal was delivered."""
    match answer:
        case DeliverAnswer.DELIVERED:
            return
        case DeliverAnswer.UNKNOWN:
            raise JobNotFound(job_id)
        case DeliverAnswer.FINISHED:
            problem = "it has finished, and takes no signals any more"
        case DeliverAnswer.FULL:
            problem = (
                f"it has all the signals it may have ({SIGNALS_MAX} of a name), and has not "
                "taken them: look whether its handler waits for this name"
            )
        case _:
            assert_never(answer)
    raise JobConflict(f"signal {name!r} was not kept for job {job_id}: {problem}", job_id=job_id)


def cancelled(job_id: str, answer: CancelAnswer) -> bool:
    """Return whether a job is cancelled, or will be."""
    match answer:
        case CancelAnswer.CANCELLED | CancelAnswer.FLAGGED:
            return True
        case CancelAnswer.FINISHED:
            return False
        case CancelAnswer.UNKNOWN:
            raise JobNotFound(job_id)
        case _:
            assert_never(answer)


def redriven(job_id: str, answer: RedriveAnswer) -> None:
    """Raise unless the job was redriven."""
    match answer:
        case RedriveAnswer.REDRIVEN:
            return
        case RedriveAnswer.REFUSED:
            raise JobConflict(
                f"job {job_id} is ready or running already, or a node of a workflow that has "
                "completed, and such a node does not run again; cancel the job first, or wait "
                "until it has finished; to run a whole workflow again, start it once more",
                job_id=job_id,
            )
        case RedriveAnswer.CONFLICT:
            raise JobConflict(
                f"job {job_id} cannot run again: another job has taken its unique or "
                "idempotency key since; it stays as it is: wait until that one is over, or "
                "submit the call without the key",
                job_id=job_id,
            )
        case RedriveAnswer.UNKNOWN:
            raise JobNotFound(job_id)
        case _:
            assert_never(answer)
