# SPDX-License-Identifier: MIT
"""Seals and opens what jobs consist of: arguments, results, errors, steps, signals."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from packhorse.client.encryption import Encryption
from packhorse.core.job import AttemptError, AttemptRecord, Job, JobRecord, NewJob
from packhorse.core.policies.attachments import Attachments
from packhorse.core.policies.uniqueness import may_replace
from packhorse.core.sealing import is_sealed
from packhorse.core.settlement import Settlement


class Sealer:
    """Seals and opens what jobs consist of."""

    def __init__(self, keys: Encryption) -> None:
        self.keys = keys

    def seal_jobs(self, jobs: Sequence[NewJob]) -> list[NewJob]:
        """New jobs as they are stored."""
        return [self.seal_job(job) for job in jobs]

    def seal_job(self, job: NewJob, *, keeper: str = "") -> NewJob:
        """A new job as it is stored; `keeper`: the record from which jobs of any id are made."""
        if is_sealed(job.payload):  # it comes from a record, which keeps it that way
            return job
        rule = job.idempotency
        if rule is not None:
            rule = msgspec.structs.replace(rule, digest=self.keys.digest(rule.digest))
        if keeper or may_replace(job.unique):  # its arguments may become those of another job
            loose = loose_place(job.task, job.tenant)
            payload = self.keys.seal(job.payload, loose, loose_for=keeper or job.id)
        else:
            payload = self.keys.seal(job.payload, place(job.id, "payload"))
        return msgspec.structs.replace(job, payload=payload.encode(), idempotency=rule)

    def open_jobs(self, jobs: Sequence[NewJob]) -> list[NewJob]:
        """Stored jobs as they were submitted, where a key opens them."""
        pairs = [(job, self.open_payload(job)) for job in jobs]
        return [
            job if payload is None else msgspec.structs.replace(job, payload=payload)
            for job, payload in pairs
        ]

    def open_payload(self, job: Job | JobRecord | NewJob) -> bytes | None:
        """The arguments of a job; None: no key opens them."""
        loose = loose_place(job.task, job.tenant)
        return self.keys.open(job.payload, place(job.id, "payload"), loose_place=loose)

    def open_job(self, job: Job) -> Job:
        """A claimed job."""
        payload = self.open_payload(job)
        return job if payload is None else msgspec.structs.replace(job, payload=payload.decode())

    def open_record(self, record: JobRecord) -> JobRecord:
        """What a store knows of a job."""
        payload, result = self.open_payload(record), record.result
        return msgspec.structs.replace(
            record,
            payload=record.payload if payload is None else payload,
            result=None if result is None else self._open(result, place(record.id, "result")),
            error=self.open_error(record.id, record.error),
        )

    def seal_settlement(self, settlement: Settlement) -> Settlement:
        """What an attempt came to."""
        result, error = settlement.result, settlement.error
        if result is None and error is None:
            return settlement
        if result is not None:
            result = self.keys.seal(result.encode(), place(settlement.job_id, "result"))
        if error is not None:
            error = self.seal_error(settlement.job_id, error)
        return msgspec.structs.replace(settlement, result=result, error=error)

    def seal_error(self, job_id: str, error: AttemptError) -> AttemptError:
        """An error: its texts are one value, in the place of the message."""
        texts = msgspec.json.encode((error.message, error.stack, error.outputs))
        message = self.keys.seal(texts, place(job_id, "error"))
        return msgspec.structs.replace(error, message=message, stack=None, outputs=None)

    def open_error(self, job_id: str, error: AttemptError | None) -> AttemptError | None:
        """An error with its texts, if a key opens them."""
        if error is None or not error.message.startswith('{"$enc"'):
            return error
        texts = self.keys.open(error.message, place(job_id, "error"))
        if texts is None:
            return error
        message, stack, outputs = msgspec.json.decode(texts)
        return msgspec.structs.replace(error, message=message, stack=stack, outputs=outputs)

    def open_attempt(self, job_id: str, line: AttemptRecord) -> AttemptRecord:
        """A line of history."""
        if line.error is None:
            return line
        return msgspec.structs.replace(line, error=self.open_error(job_id, line.error))

    def open_attached(self, job_id: str, kept: Attachments) -> Attachments:
        """What is kept with a job."""
        return msgspec.structs.replace(
            kept,
            values={
                name: self._open(value, place(job_id, "step", name))
                for name, value in kept.values.items()
            },
            signals={
                name: tuple(self._open(value, place(job_id, "signal", name)) for value in came)
                for name, came in kept.signals.items()
            },
        )

    def _open(self, value: bytes, where: str) -> bytes:
        opened = self.keys.open(value, where)
        return value if opened is None else opened


def place(job_id: str, field: str, name: str = "") -> str:
    """Where a value belongs; it opens nowhere else. No id or name has U+0000."""
    return f"job\0{job_id}\0{field}\0{name}"


def loose_place(task: str, tenant: str) -> str:
    """Where arguments belong that may become those of another job."""
    return f"any\0{task}\0{tenant}\0payload"
