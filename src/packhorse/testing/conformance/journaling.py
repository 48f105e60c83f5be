# SPDX-License-Identifier: MIT
"""The journal: a line for each end of a group's member, and for each redrive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import msgspec
import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import JobOptions, JobStatus, NewJob
from packhorse.core.policies.journal import Group, JournalLine
from packhorse.core.policies.retention import Retention
from packhorse.core.settlement import SettlementKind, Verdict
from packhorse.errors import ConfigError
from packhorse.stores.requests import JobFilter
from packhorse.testing.conformance.samples import ANNA, BEN, new_job, settlement_of
from packhorse.testing.conformance.trial import EVERYTHING, Trial
from packhorse.testing.conformance.words import cancel, heard, limit_queue, redrive

BATCH: Final = Group("batch", "acme", "order #17", "1")  #: a group
_PENDING, _QUEUED, _PROCESSING = JobStatus.PENDING, JobStatus.QUEUED, JobStatus.PROCESSING
_COMPLETED, _CANCELLED, _DEAD = JobStatus.COMPLETED, JobStatus.CANCELLED, JobStatus.DEAD
_FAR_US: Final = 3600 * SECOND_US


def member(job_id: str, group: Group = BATCH, node: str = "node", **changes: Any) -> NewJob:
    """Return a job of a group."""
    options = msgspec.structs.replace(
        changes.pop("options", JobOptions()), member=group.member(node)
    )
    return new_job(job_id, options=options, **changes)


def journal(trial: Trial, group: Group = BATCH) -> tuple[JournalLine, ...]:
    """Return all lines of a group."""
    return trial.run(trial.store.journal.journal(group, limit=EVERYTHING))


def told(trial: Trial, group: Group = BATCH) -> list[tuple[str, JobStatus, JobStatus]]:
    """Return the job, its status and its previous status of each line."""
    return [(line.job_id, line.status, line.was) for line in journal(trial, group)]


def _settle(trial: Trial, *, kind: SettlementKind, **changes: Any) -> None:
    trial.end(trial.take(member("a", **changes)), kind)


def _flagged(trial: Trial) -> None:
    job = trial.take(member("a"))
    cancel(trial, "a")
    assert trial.end(job, SettlementKind.FAILED) is Verdict.CANCELLED


def _cancelled(trial: Trial) -> None:
    trial.submit(member("a"))
    cancel(trial, "a")


def _cancelled_when_lost(trial: Trial) -> None:
    trial.take(member("a"))
    trial.let_lease_expire()
    cancel(trial, "a")


def _expired(trial: Trial) -> None:
    trial.submit(member("a", deadline_us=trial.now_us() + SECOND_US))
    trial.advance_us(SECOND_US)
    trial.run(trial.store.upkeep.expire(limit=EVERYTHING))


def _too_late_for_a_retry(trial: Trial) -> None:
    job = trial.take(member("a", deadline_us=trial.now_us() + 2 * SECOND_US))
    assert trial.end(job, SettlementKind.SNOOZED) is Verdict.EXPIRED


def _shed(trial: Trial) -> None:
    limit_queue(trial, max_depth=1, on_full="drop")
    trial.submit(member("a", priority=4))
    trial.submit(new_job("urgent"))


def _shed_at_once(trial: Trial) -> None:
    limit_queue(trial, max_depth=1, on_full="drop")
    trial.submit(new_job("first"))
    trial.submit(member("a"))


def _parked(trial: Trial) -> None:
    trial.submit(member("a", task="unknown"))
    for _ in range(2):
        trial.renew(ANNA, queues=("default",), tasks=("known",), lease_us=_FAR_US)
        trial.run(trial.store.upkeep.park(after_us=0, limit=EVERYTHING))


def _lost(trial: Trial) -> None:
    trial.take(member("a", options=JobOptions(max_crashes=0)))
    trial.let_lease_expire()
    trial.rescue(ANNA)


def _left(trial: Trial) -> None:
    trial.take(member("a"))
    cancel(trial, "a")
    trial.run(trial.store.leases.leave(ANNA))


#: Ends of a member: the action, the new status, the previous status.
_PATHS: Final[Mapping[str, tuple[Callable[[Trial], None], JobStatus]]] = MappingProxyType(
    {
        "completed": (partial(_settle, kind=SettlementKind.COMPLETED), _COMPLETED),
        "tenant's": (
            partial(_settle, kind=SettlementKind.COMPLETED, tenant="acme"),
            _COMPLETED,
        ),
        "dead": (partial(_settle, kind=SettlementKind.DEAD), _DEAD),
        "stopped": (partial(_settle, kind=SettlementKind.CANCELLED), _CANCELLED),
        "flagged": (_flagged, _CANCELLED),
        "cancelled": (_cancelled, _CANCELLED),
        "cancelled when lost": (_cancelled_when_lost, _CANCELLED),
        "expired": (_expired, _DEAD),
        "too late for a retry": (_too_late_for_a_retry, _DEAD),
        "shed": (_shed, _DEAD),
        "shed at once": (_shed_at_once, _DEAD),
        "parked too long": (_parked, _DEAD),
        "lost": (_lost, _DEAD),
        "given back when cancelled": (_left, _CANCELLED),
    }
)
#: The ends above that apply to waiting jobs.
_WAITED: Final = frozenset({"cancelled", "expired", "parked too long", "shed", "shed at once"})
_paths = pytest.mark.parametrize("path", sorted(_PATHS))


class TestJournalPaths:
    """One line for every end of a member, and for every redrive; none for others."""

    @_paths
    def test_a_member_that_becomes_final_is_told(self, trial: Trial, path: str) -> None:
        doing, status = _PATHS[path]

        doing(trial)

        [line] = journal(trial)
        assert trial.status("a") is status
        assert (line.group, line.job_id, line.node, line.status) == (BATCH, "a", "node", status)
        # A job that is dropped at its submit may never have been ready.
        before = {_PENDING, _QUEUED} if path in _WAITED else {_PROCESSING}
        assert line.was in before
        assert (line.items, line.failed) == (0, 0)

    @_paths
    def test_a_member_that_is_final_no_more_is_told(self, trial: Trial, path: str) -> None:
        doing, status = _PATHS[path]
        doing(trial)

        redrive(trial, "a")

        end, again = told(trial)
        assert end[:2] == ("a", status)
        assert again == ("a", _QUEUED, status)

    def test_each_of_a_batch_is_told_once(self, trial: Trial) -> None:
        names = [f"job-{at}" for at in range(20)]
        trial.submit(*(member(name, node=name) for name in names))
        claimed = trial.claim()

        trial.settle(*(settlement_of(SettlementKind.COMPLETED, job) for job in claimed))
        trial.settle(*(settlement_of(SettlementKind.COMPLETED, job) for job in claimed))

        lines = journal(trial)
        assert sorted(line.job_id for line in lines) == sorted(names)
        assert all(line.node == line.job_id for line in lines)
        assert len({line.id for line in lines}) == len(names)

    def test_a_job_without_a_group_is_not_told(self, trial: Trial) -> None:
        plain = [
            new_job("plain"),
            new_job("named", options=JobOptions(max_crashes=0), tags=('"member":[',)),
        ]
        for job in plain:
            trial.finish(job, SettlementKind.DEAD)
            redrive(trial, job.id)
            cancel(trial, job.id)

        assert trial.run(trial.store.journal.journal_groups(limit=EVERYTHING)) == ()

    @pytest.mark.parametrize(
        "kind", [SettlementKind.FAILED, SettlementKind.SNOOZED, SettlementKind.RELEASED]
    )
    def test_a_member_that_goes_on_is_not_told(self, trial: Trial, kind: SettlementKind) -> None:
        trial.submit(member("waits", delay_us=_FAR_US))

        trial.end(trial.take(member("a")), kind)
        redrive(trial, "waits")

        assert told(trial) == []

    def test_a_stale_settlement_is_not_told(self, trial: Trial) -> None:
        job = trial.take(member("a"))

        late = msgspec.structs.replace(
            settlement_of(SettlementKind.COMPLETED, job), fence=job.fence + 1, counted=(1, 1)
        )

        assert trial.settle(late) == (Verdict.STALE,)
        assert told(trial) == []

    def test_a_claim_tells_the_group_and_the_record_too(self, trial: Trial) -> None:
        job = trial.take(member("a", node="first step"))

        assert job.options is not None
        options = msgspec.json.decode(job.options, type=JobOptions)
        assert options.member == BATCH.member("first step")
        assert trial.record("a").options == options


class TestJournalLines:
    """The content of a line, and the wake-up for it."""

    def test_a_line_has_what_the_settlement_counted(self, trial: Trial) -> None:
        for name, kind in (("a", SettlementKind.COMPLETED), ("b", SettlementKind.DEAD)):
            job = trial.take(member(name))
            counted = msgspec.structs.replace(settlement_of(kind, job), counted=(2**40, 3))
            assert trial.settle(counted) == (Verdict.APPLIED,)
            assert trial.settle(counted) == (Verdict.APPLIED,)

        assert [(line.items, line.failed) for line in journal(trial)] == [(2**40, 3)] * 2

    def test_of_an_end_that_is_taken_back_a_line_has_what_that_counted(self, trial: Trial) -> None:
        for name, kind in (("a", SettlementKind.COMPLETED), ("b", SettlementKind.DEAD)):
            job = trial.take(member(name))
            trial.settle(msgspec.structs.replace(settlement_of(kind, job), counted=(5, 1)))
            redrive(trial, name)
            cancel(trial, name)

        assert [(line.items, line.failed) for line in journal(trial)] == [
            *((5, 1), (5, 1), (0, 0)),
            *((5, 1), (5, 1), (0, 0)),
        ]

    def test_what_an_attempt_counted_that_did_not_end_the_job_is_not_told(
        self, trial: Trial
    ) -> None:
        job = trial.take(member("a"))
        snoozed = settlement_of(SettlementKind.SNOOZED, job)

        trial.settle(msgspec.structs.replace(snoozed, counted=(5, 1)))
        cancel(trial, "a")

        [line] = journal(trial)
        assert (line.items, line.failed) == (0, 0)

    def test_a_job_without_a_group_may_count_too(self, trial: Trial) -> None:
        job = trial.take(new_job("plain"))
        done = settlement_of(SettlementKind.COMPLETED, job)

        assert trial.settle(msgspec.structs.replace(done, counted=(5, 1))) == (Verdict.APPLIED,)

        attached = trial.run(trial.store.attachments.attachments("plain"))
        assert attached is not None
        assert attached.counted == (0, 0)

    def test_lines_of_one_job_are_in_order(self, trial: Trial) -> None:
        trial.submit(member("a"))
        for _ in range(5):
            cancel(trial, "a")
            redrive(trial, "a")

        ends, again = ("a", _CANCELLED, _QUEUED), ("a", _QUEUED, _CANCELLED)
        assert told(trial) == [ends, again] * 5
        ids = [line.id for line in journal(trial)]
        assert ids == sorted(ids)

    def test_a_line_outlives_its_job(self, trial: Trial) -> None:
        trial.finish(member("a"))

        assert trial.run(trial.store.jobs.delete(JobFilter(), limit=EVERYTHING)).removed == 1

        assert told(trial) == [("a", _COMPLETED, _PROCESSING)]

    @pytest.mark.parametrize("path", ["completed", "cancelled"])
    def test_those_who_listen_to_the_journal_are_woken(self, trial: Trial, path: str) -> None:
        job = trial.take(member("a"), worker=BEN)
        done = settlement_of(SettlementKind.COMPLETED, job)
        trial.submit(member("waits", delay_us=_FAR_US))
        doing: dict[str, Callable[[Any], Any]] = {
            "completed": lambda store: store.jobs.settle([done]),
            "cancelled": lambda store: store.jobs.cancel("waits"),
        }

        assert heard(trial, "journal", doing[path])

    def test_a_member_keeps_its_result_as_long_as_its_record(self, trial: Trial) -> None:
        job = trial.take(member("a"))
        kept = Retention(finished_us=10 * SECOND_US, results_us=SECOND_US)
        trial.end(job, retention=kept)

        trial.advance_us(9 * SECOND_US)
        assert trial.run(trial.store.upkeep.prune(limit=EVERYTHING)) == 0
        assert trial.record("a").result == b'{"sent":true}'
        trial.advance_us(SECOND_US)
        assert trial.run(trial.store.upkeep.prune(limit=EVERYTHING)) == 1

    @pytest.mark.parametrize(
        "group",
        [
            BATCH._replace(kind="Batch"),
            BATCH._replace(key="a\0"),
            BATCH._replace(run=""),
            BATCH._replace(run="1#2"),
            BATCH._replace(tenant="t" * 513),
        ],
    )
    def test_a_group_that_no_store_can_name_is_refused(self, trial: Trial, group: Group) -> None:
        assert Group.of(BATCH.text) == BATCH
        with pytest.raises(ConfigError):
            trial.submit(member("a", group))
        with pytest.raises(ConfigError):
            trial.submit(member("a", node="\0"))
