# SPDX-License-Identifier: MIT
"""Replacing texts in the values of a job, as a change of encryption keys does."""

from __future__ import annotations

from typing import Final

import msgspec

from packhorse.core.job import AttemptError, Job, JobRecord
from packhorse.core.lifecycle import JobRules, settle
from packhorse.core.outcome import Failed, Succeeded
from packhorse.core.policies.attachments import Attaching
from packhorse.testing.conformance.samples import BEN, new_job
from packhorse.testing.conformance.trial import Trial

_LONG: Final = "x" * 3_000
_FAILED: Final = AttemptError(type="E", message='{"$enc":"k1:err"}', code="EXCEPTION")
_WORDS: Final = ("pay", "err", "res", "val", "sig")


class TestExchanging:
    """Replace texts in the values of a job."""

    def test_every_value_of_a_job_has_the_new_text(self, trial: Trial) -> None:
        job = _kept(trial, "a", payload=b'{"$enc":"k1:pay"}')
        _end(trial, job, Failed(_FAILED, asked=True))
        trial.run(trial.store.jobs.redrive([job.id]))
        _end(trial, trial.claim_only(BEN), Succeeded('{"$enc":"k1:res"}'))

        assert _exchange(trial, job.id)

        record = _record(trial, job.id)
        assert record.payload == b'{"$enc":"key-2:pay-more"}'
        assert record.result == b'{"$enc":"key-2:res-more"}'
        first, *_ = trial.run(trial.store.inspection.history(job.id))
        assert first.error == msgspec.structs.replace(_FAILED, message='{"$enc":"key-2:err-more"}')
        kept = trial.run(trial.store.attachments.attachments(job.id))
        assert kept is not None
        assert kept.values == {"s": b'{"$enc":"key-2:val-more"}', "raw": bytes(range(256))}
        assert kept.signals == {"go": (b'{"$enc":"key-2:sig-more"}',)}

    def test_a_large_payload_and_the_error_of_a_waiting_job_too(self, trial: Trial) -> None:
        job = _kept(trial, "a", payload=f'{{"$enc":"k1:pay{_LONG}"}}'.encode())
        _end(trial, job, Failed(_FAILED, asked=True))

        assert _exchange(trial, job.id)

        record = _record(trial, job.id)
        assert record.payload == f'{{"$enc":"key-2:pay-more{_LONG}"}}'.encode()
        assert record.error is not None
        assert record.error.message == '{"$enc":"key-2:err-more"}'

    def test_nothing_else_changes_and_a_running_job_goes_on(self, trial: Trial) -> None:
        job = _kept(trial, "a", payload=b'{"$enc":"k1:pay"}')
        trial.submit(new_job("b", payload=b'{"$enc":"k1:pay"}'))
        before, other = _record(trial, job.id), _record(trial, "b")

        assert _exchange(trial, job.id)

        after = _record(trial, job.id)
        assert after == msgspec.structs.replace(before, payload=after.payload)
        assert _record(trial, "b") == other
        _end(trial, job, Succeeded("1"))
        assert _record(trial, job.id).result == b"1"

    def test_a_text_that_does_not_stand_there_any_more_changes_nothing(self, trial: Trial) -> None:
        trial.submit(new_job("a", payload=b'{"$enc":"k3:new"}'))
        before = _record(trial, "a")

        assert _exchange(trial, "a")

        assert _record(trial, "a") == before

    def test_a_job_that_is_not_there_is_told(self, trial: Trial) -> None:
        assert not _exchange(trial, "none")


def _kept(trial: Trial, job_id: str, *, payload: bytes) -> Job:
    """Return a running job with attachments."""
    job = trial.take(new_job(job_id, payload=payload))
    attachments = trial.store.attachments
    values = {"s": b'{"$enc":"k1:val"}', "raw": bytes(range(256))}
    trial.run(attachments.attach([Attaching(job.id, job.fence, values)]))
    trial.run(attachments.deliver(job.id, "go", b'{"$enc":"k1:sig"}'))
    return job


def _end(trial: Trial, job: Job, outcome: Failed | Succeeded) -> None:
    trial.run(trial.store.jobs.settle([settle(job, outcome, JobRules(), roll=0.5)]))


def _exchange(trial: Trial, job_id: str) -> bool:
    texts = {f"k1:{word}": f"key-2:{word}-more" for word in _WORDS}
    return trial.run(trial.store.transfer.exchange(job_id, texts))


def _record(trial: Trial, job_id: str) -> JobRecord:
    record = trial.run(trial.store.inspection.job(job_id))
    assert record is not None
    return record
