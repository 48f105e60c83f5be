# SPDX-License-Identifier: MIT
"""Values that a job's owner stores with it, guarded by its fence, and signals from outside."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import Job, JobOptions, JobStatus
from packhorse.core.lifecycle import JobRules, settle
from packhorse.core.outcome import Snoozed
from packhorse.core.policies.attachments import (
    ATTACHED_BYTES_MAX,
    ATTACHED_MAX,
    SIGNALS_MAX,
    VALUE_BYTES_MAX,
    Attaching,
    Attachments,
)
from packhorse.core.settlement import SettlementKind, Verdict
from packhorse.errors import ConfigError, PayloadError
from packhorse.stores.attachments import DeliverAnswer
from packhorse.stores.requests import JobFilter
from packhorse.testing.conformance.samples import BEN, QUEUE, new_job
from packhorse.testing.conformance.trial import EVERYTHING, Trial
from packhorse.testing.conformance.words import limit_queue, redrive, submit

_DELIVERED: Final = DeliverAnswer.DELIVERED
_LONG_US: Final = 3600 * SECOND_US
_OTHER_KINDS: Final = (
    *(SettlementKind.FAILED, SettlementKind.TIMEOUT, SettlementKind.SNOOZED),
    *(SettlementKind.RELEASED, SettlementKind.LIMITED),
)


class TestAttaching:
    """Keep values with a job while it is processing with this fence."""

    def test_what_was_attached_is_there(self, trial: Trial) -> None:
        job = trial.take()

        assert _attach(trial, job, a=b"1", b=bytes(range(256))) is Verdict.APPLIED
        assert _attach(trial, job, a=b"2", c=b"") is Verdict.APPLIED  # a name gets the new value

        assert _of(trial, job.id).values == {"a": b"2", "b": bytes(range(256)), "c": b""}
        assert _attach(trial, job) is Verdict.APPLIED

    def test_a_stale_writer_attaches_nothing(self, trial: Trial) -> None:
        job = trial.take(new_job("a"))
        later = msgspec.structs.replace(job, fence=job.fence + 1)
        assert _attach(trial, later, x=b"1") is Verdict.STALE
        trial.end(job, SettlementKind.RELEASED)
        assert _attach(trial, job, x=b"1") is Verdict.STALE
        (again,) = trial.claim(BEN)

        assert _attach(trial, job, x=b"1") is Verdict.STALE
        assert _attach(trial, again, y=b"2") is Verdict.APPLIED
        trial.end(again)
        assert _attach(trial, again, x=b"1") is Verdict.STALE
        unknown = msgspec.structs.replace(job, id="unknown")
        assert _attach(trial, unknown, x=b"1") is Verdict.STALE
        assert _of(trial, "a").values == {"y": b"2"}

    def test_several_jobs_are_written_at_once_and_each_is_answered_for_itself(
        self, trial: Trial
    ) -> None:
        submit(trial, "c", "a", "b", "over")
        jobs = {job.id: job for job in trial.claim(limit=4)}
        _attach(trial, jobs["a"], x=b"1", y=b"1")
        trial.end(jobs["over"])

        verdicts = _attach_all(
            trial,
            Attaching("c", jobs["c"].fence, {"x": b"2"}),
            Attaching("over", jobs["over"].fence, {"x": b"2"}),
            Attaching("b", jobs["b"].fence + 1, {"x": b"2"}),
            Attaching("a", jobs["a"].fence, {"x": b"2", "z": b""}),
            Attaching("unknown", 1, {"x": b"2"}),
        )

        stale = Verdict.STALE
        assert verdicts == (Verdict.APPLIED, stale, stale, Verdict.APPLIED, stale)
        assert _of(trial, "a").values == {"x": b"2", "y": b"1", "z": b""}
        assert _of(trial, "c").values == {"x": b"2"}
        assert _of(trial, "b") == _of(trial, "over") == Attachments()
        assert _attach_all(trial) == ()

    def test_of_several_that_are_too_much_for_one_nothing_is_kept(self, trial: Trial) -> None:
        submit(trial, "a", "b")
        first, second = trial.claim(limit=2)
        many = {f"n{at}": b"" for at in range(ATTACHED_MAX + 1)}

        with pytest.raises(PayloadError, match=second.id):
            _attach_all(
                trial,
                Attaching(first.id, first.fence, {"x": b"1"}),
                Attaching(second.id, second.fence, many),
            )
        with pytest.raises(ConfigError, match="twice"):
            _attach_all(trial, *[Attaching(first.id, first.fence, {"x": b"1"})] * 2)

        assert _of(trial, first.id) == _of(trial, second.id) == Attachments()

    def test_the_job_was_changed_when_it_was(self, trial: Trial) -> None:
        job = trial.take()
        trial.advance_us(SECOND_US)

        _attach(trial, job, a=b"1")
        _attach(trial, job, a=b"2")

        assert trial.record(job.id).updated_us == trial.now_us() - SECOND_US

    @pytest.mark.parametrize("kind", _OTHER_KINDS)
    def test_from_then_on_claims_say_that_something_is_attached(
        self, trial: Trial, kind: SettlementKind
    ) -> None:
        job = trial.take(new_job(options=JobOptions(max_snoozes=9), tags=("t",)))
        assert not _options(job).attached

        _attach(trial, job, a=b"1")
        trial.end(job, kind)
        trial.advance_us(_LONG_US)
        again = trial.claim_only()

        assert (_options(again).attached, _options(again).max_snoozes) == (True, 9)
        assert trial.record(job.id).tags == ("t",)
        assert _of(trial, job.id).values == {"a": b"1"}

    def test_it_survives_a_rescue(self, trial: Trial) -> None:
        job = trial.take(new_job("a"), worker="lost")
        _attach(trial, job, a=b"1")
        trial.let_lease_expire()
        trial.rescue("lost")
        trial.advance_us(2 * SECOND_US)

        assert _options(trial.claim_any()).attached
        assert _of(trial, "a").values == {"a": b"1"}

    def test_of_jobs_with_nothing_attached_claims_say_nothing(self, trial: Trial) -> None:
        job = trial.take(new_job("a"))

        assert job.options is None
        assert _of(trial, "a") == Attachments()
        assert trial.run(trial.store.attachments.attachments("unknown")) is None

    def test_beyond_the_bounds_nothing_is_kept(self, trial: Trial) -> None:
        job = trial.take()
        whole = ATTACHED_BYTES_MAX // VALUE_BYTES_MAX
        _attach(trial, job, **{str(at): b"x" * VALUE_BYTES_MAX for at in range(whole)})

        with pytest.raises(PayloadError, match="attached"):
            _attach(trial, job, first=b"", more=b"x")
        assert _attach(trial, job, **{"0": b""}) is Verdict.APPLIED
        assert _attach(trial, job, more=b"x") is Verdict.APPLIED
        with pytest.raises(PayloadError, match="attached"):
            _attach(trial, job, **{f"n{at}": b"" for at in range(ATTACHED_MAX)})

        assert len(_of(trial, job.id).values) == whole + 1

    @pytest.mark.parametrize(
        ("name", "value", "error"),
        [
            ("a", b"x" * (VALUE_BYTES_MAX + 1), PayloadError),
            ("", b"", ConfigError),
            ("n" * 257, b"", ConfigError),
            ("\0", b"", ConfigError),
            ("\ud800", b"", ConfigError),
        ],
        ids=["value", "empty", "long", "nul", "surrogate"],
    )
    def test_what_no_job_can_have_is_refused(
        self, trial: Trial, name: str, value: bytes, error: type[Exception]
    ) -> None:
        job = trial.take()

        with pytest.raises(error):
            _attach(trial, job, **{name: value})
        with pytest.raises(error):
            _deliver(trial, job.id, name, value)

        assert _attach(trial, job, **{"ü" * 128: b"fits"}) is Verdict.APPLIED

    def test_it_goes_when_the_job_goes(self, trial: Trial) -> None:
        for name in ("deleted", "pruned"):
            job = trial.take(new_job(name, task=name))
            _attach(trial, job, a=b"1")
            _deliver(trial, name, "s", b"2")
            trial.end(job)
        trial.run(trial.store.jobs.delete(JobFilter(task="deleted"), limit=1))
        trial.advance_us(48 * _LONG_US)
        trial.run(trial.store.upkeep.prune(limit=EVERYTHING))
        submit(trial, "deleted", "pruned")  # the same ids again

        assert _of(trial, "deleted") == _of(trial, "pruned") == Attachments()

    def test_dead_and_cancelled_jobs_keep_it_over_a_redrive_and_completed_ones_do_not(
        self, trial: Trial
    ) -> None:
        for name, kind in (
            ("dead", SettlementKind.DEAD),
            ("cancelled", SettlementKind.CANCELLED),
            ("completed", SettlementKind.COMPLETED),
        ):
            job = trial.take(new_job(name))
            _attach(trial, job, a=b"1")
            _deliver(trial, name, "s", b"2")
            trial.end(job, kind)
            redrive(trial, name)
            trial.claim()

        kept = Attachments({"a": b"1"}, {"s": (b"2",)})
        assert (_of(trial, "dead"), _of(trial, "cancelled")) == (kept, kept)
        assert _of(trial, "completed") == Attachments()
        last = trial.record("completed")
        again = Attaching("completed", last.fence, {"b": b""})
        assert trial.run(trial.store.attachments.attach([again])) == (Verdict.APPLIED,)

    def test_a_redrive_of_a_finished_job_forgets_what_is_named_and_a_hurried_one_nothing(
        self, trial: Trial
    ) -> None:
        def redriven(name: str, kind: SettlementKind) -> Job:
            job = trial.take(new_job(name))
            _attach(trial, job, a=b"1", b=b"2")
            for signal in ("b", "b", "s"):
                _deliver(trial, name, signal, b"3")
            trial.end(job, kind)
            trial.run(trial.store.jobs.redrive([name], forget=["b", "nothing"]))
            return trial.claim_only()

        redriven("failed", SettlementKind.FAILED)
        again = redriven("dead", SettlementKind.DEAD)

        every = Attachments({"a": b"1", "b": b"2"}, {"b": (b"3", b"3"), "s": (b"3",)})
        assert _of(trial, "failed") == every
        assert (
            _of(trial, "dead") == every.without({"b"}) == Attachments({"a": b"1"}, {"s": (b"3",)})
        )
        waits = settle(again, Snoozed(_LONG_US, waits=1), JobRules(), roll=0.5)
        trial.settle(waits)
        assert trial.record("dead").status is JobStatus.PENDING  # a forgotten signal wakes no job

    def test_a_job_of_another_tenant_shows_nothing(self, trial: Trial) -> None:
        submit(trial, "theirs", tenant="acme")

        def seen(tenant: str) -> Attachments | None:
            return trial.run(trial.store.attachments.attachments("theirs", tenant=tenant))

        assert (seen("beta"), seen("acme")) == (None, Attachments())

    def test_attaching_changes_nothing_else_that_matters(self, trial: Trial) -> None:
        job = trial.take(new_job("a", payload=b'{"n":[]}', created_by="x", tags=("t",)))
        before = trial.record("a")
        _attach(trial, job, a=b"1")

        after = trial.record("a")
        assert after.options == JobOptions(attached=True)
        assert msgspec.structs.replace(after, options=None) == before
        assert trial.search(tag="t") == ["a"]
        assert trial.end(job) is Verdict.APPLIED


class TestDelivering:
    """Append a signal to those of its name, whatever the job does."""

    def test_signals_of_a_name_are_kept_in_the_order_of_coming(self, trial: Trial) -> None:
        submit(trial, "a")
        for at in range(12):
            assert _deliver(trial, "a", "n", b"%d" % at) is _DELIVERED
        _deliver(trial, "a", "m", b"")

        signals = {"n": tuple(b"%d" % at for at in range(12)), "m": (b"",)}
        assert _of(trial, "a") == Attachments({}, signals)
        assert _options(trial.claim_only()).attached

    def test_a_value_and_a_signal_may_have_one_name(self, trial: Trial) -> None:
        job = trial.take(new_job("a"))
        _attach(trial, job, x=b"value")
        _deliver(trial, "a", "x", b"signal")

        assert _of(trial, "a") == Attachments({"x": b"value"}, {"x": (b"signal",)})

    def test_a_finished_or_unknown_job_keeps_nothing(self, trial: Trial) -> None:
        trial.finish(new_job("done"))
        trial.finish(new_job("dead"), SettlementKind.DEAD)

        assert _deliver(trial, "done", "n", b"1") is DeliverAnswer.FINISHED
        assert _deliver(trial, "dead", "n", b"1") is DeliverAnswer.FINISHED
        assert _deliver(trial, "unknown", "n", b"1") is DeliverAnswer.UNKNOWN
        assert _of(trial, "done") == _of(trial, "dead") == Attachments()

    def test_a_job_of_another_tenant_is_unknown(self, trial: Trial) -> None:
        submit(trial, "theirs", tenant="acme")

        assert _deliver(trial, "theirs", "n", b"1", tenant="beta") is DeliverAnswer.UNKNOWN
        assert _deliver(trial, "theirs", "n", b"1", tenant="acme") is _DELIVERED
        assert _of(trial, "theirs").delivered == 1

    def test_of_one_name_so_many_are_kept_and_no_more(self, trial: Trial) -> None:
        submit(trial, "a")
        for _ in range(SIGNALS_MAX):
            assert _deliver(trial, "a", "n", b"") is _DELIVERED

        assert _deliver(trial, "a", "n", b"") is DeliverAnswer.FULL
        assert _deliver(trial, "a", "m", b"") is _DELIVERED
        assert _of(trial, "a").delivered == SIGNALS_MAX + 1

    def test_a_job_that_has_as_much_as_it_may_have_keeps_no_more(self, trial: Trial) -> None:
        job = trial.take(new_job("a"))
        whole = ATTACHED_BYTES_MAX // VALUE_BYTES_MAX
        _attach(trial, job, **{str(at): b"x" * VALUE_BYTES_MAX for at in range(whole)})

        assert _deliver(trial, "a", "n", b"x") is DeliverAnswer.FULL
        assert _deliver(trial, "a", "n", b"") is _DELIVERED

    def test_a_job_that_waits_for_one_is_no_depth_of_its_queue(self, trial: Trial) -> None:
        job = trial.take(new_job("a"))
        limit_queue(trial, max_depth=1, on_full="drop")

        trial.settle(settle(job, Snoozed(_LONG_US, waits=0), JobRules(), roll=0.5))
        before = _depth(trial)
        (counts,) = trial.run(trial.store.inspection.counts())
        submit(trial, "b")  # the full queue drops neither
        submit(trial, "c")  # it drops this one
        taken = _depth(trial)
        _deliver(trial, "a", "n", b"")
        (again,) = [each for each in trial.claim(limit=2) if each.id == "a"]
        trial.end(again, SettlementKind.FAILED)

        assert (before, taken, _depth(trial)) == (0, 1, 1)
        assert (counts.in_steps, counts.by_status[JobStatus.PENDING]) == (1, 1)
        assert [each.in_steps for each in trial.run(trial.store.inspection.counts(most=9))] == [0]
        statuses = [trial.record(each).status for each in "abc"]
        assert statuses == [JobStatus.FAILED, JobStatus.PROCESSING, JobStatus.DEAD]

    @pytest.mark.parametrize("status", ["scheduled", "retrying", "snoozed", "queued"])
    def test_a_job_that_waits_for_something_else_stays_as_it_is(
        self, trial: Trial, status: str
    ) -> None:
        if status in ("scheduled", "queued"):
            submit(trial, "a", delay_us=_LONG_US if status == "scheduled" else 0)
        else:
            job, kinds = trial.take(new_job("a")), SettlementKind
            trial.end(job, kinds.FAILED if status == "retrying" else kinds.SNOOZED)
        before = trial.record("a")

        _deliver(trial, "a", "n", b"1")

        after = trial.record("a")
        assert (after.status, after.due_us) == (before.status, before.due_us)

    def test_of_many_at_once_none_is_lost(self, trial: Trial) -> None:
        submit(trial, "a")

        async def all_at_once() -> list[DeliverAnswer]:
            values = [b"%d" % at for at in range(16)]
            plans = [trial.store.attachments.deliver("a", "n", value) for value in values]
            return await asyncio.gather(*(trial.arun(plan) for plan in plans))

        assert trial.play(all_at_once()) == [_DELIVERED] * 16
        assert sorted(_of(trial, "a").signals["n"], key=int) == [b"%d" % at for at in range(16)]


def _attach(trial: Trial, job: Job, **values: bytes) -> Verdict:
    (verdict,) = _attach_all(trial, Attaching(job.id, job.fence, values))
    return verdict


def _attach_all(trial: Trial, *kept: Attaching) -> tuple[Verdict, ...]:
    return trial.run(trial.store.attachments.attach(kept))


def _deliver(
    trial: Trial, job_id: str, name: str, value: bytes, tenant: str | None = None
) -> DeliverAnswer:
    return trial.run(trial.store.attachments.deliver(job_id, name, value, tenant=tenant))


def _depth(trial: Trial) -> int:
    return trial.run(trial.store.queues.depth(QUEUE))


def _of(trial: Trial, job_id: str) -> Attachments:
    found = trial.run(trial.store.attachments.attachments(job_id))
    assert found is not None
    return found


def _options(job: Job) -> JobOptions:
    return (
        JobOptions() if job.options is None else msgspec.json.decode(job.options, type=JobOptions)
    )
