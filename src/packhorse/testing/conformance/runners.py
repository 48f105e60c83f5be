# SPDX-License-Identifier: MIT
"""`Store`: its two runners, many threads and event loops at once, and its schema."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, TypeVar

import pytest

from packhorse.core.job import JobStatus
from packhorse.core.settlement import SettlementKind
from packhorse.errors import ConfigError
from packhorse.stores.plan import Plan
from packhorse.stores.protocol import Store
from packhorse.stores.requests import QueueSettings, Submitted
from packhorse.testing.conformance.contention import at_once
from packhorse.testing.conformance.samples import new_job, settlement_of
from packhorse.testing.conformance.trial import Trial

T = TypeVar("T")

_PLANS: Final = 30


class TestRunners:
    """Run a plan in the caller's thread, or without blocking the event loop."""

    def test_plans_that_wait_together_are_each_answered_for_themselves(self, trial: Trial) -> None:
        jobs = [new_job(str(number)) for number in range(_PLANS)]

        async def scenario() -> list[tuple[Submitted, ...]]:
            plans = [trial.store.jobs.submit((job,), ids_are_new=True) for job in jobs]
            return await asyncio.gather(*(trial.arun(plan) for plan in plans))

        answers = trial.play(scenario())

        assert [answer[0].job_id for answer in answers] == [job.id for job in jobs]
        assert sorted(trial.search()) == sorted(job.id for job in jobs)

    def test_a_refused_plan_harms_none_of_those_that_wait_with_it(self, trial: Trial) -> None:
        trial.declare(QueueSettings("mail", dead_letter="mail_dead"))
        good = [new_job(str(number)) for number in range(6)]
        bad = new_job("bad", queue="mail_dead")

        async def scenario() -> list[tuple[Submitted, ...] | BaseException]:
            jobs = (*good[:3], bad, *good[3:])
            plans = [trial.store.jobs.submit((job,), ids_are_new=True) for job in jobs]
            waiting = (trial.arun(plan) for plan in plans)
            return await asyncio.gather(*waiting, return_exceptions=True)

        answers = trial.play(scenario())

        refused = [answer for answer in answers if isinstance(answer, BaseException)]
        assert [type(error) for error in refused] == [ConfigError]
        assert sorted(trial.search()) == sorted(job.id for job in good)

    def test_many_threads_may_run_plans_at_once(self, trial: Trial) -> None:
        names = [str(number) for number in range(8)]
        plans = [trial.store.jobs.submit((new_job(name),), ids_are_new=True) for name in names]

        answers = at_once(*(partial(trial.store.run, plan) for plan in plans))

        assert [answer[0].job_id for answer in answers] == names
        assert sorted(trial.search()) == names

    def test_event_loops_of_several_threads_may_run_plans_at_once(self, trial: Trial) -> None:
        names = [str(number) for number in range(4)]
        plans = [trial.store.jobs.submit([new_job(name)]) for name in names]

        answers = at_once(*(partial(_in_own_loop, trial.store, plan) for plan in plans))

        assert [answer[0].job_id for answer in answers] == names
        assert sorted(trial.search()) == names

    def test_a_second_event_loop_is_served_after_the_first_has_closed(self, trial: Trial) -> None:
        for name in ("first", "second"):
            asyncio.run(trial.store.arun(trial.store.jobs.submit([new_job(name)])))

        assert trial.search() == ["second", "first"]

    def test_a_cancelled_wait_leaves_the_store_in_order(self, trial: Trial) -> None:
        async def scenario() -> None:
            plan = trial.store.jobs.submit([new_job("perhaps")])
            waiting = asyncio.create_task(trial.store.arun(plan))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

        trial.play(scenario())

        trial.submit(new_job("sure"))
        assert "sure" in trial.search()

    def test_what_one_runner_wrote_the_other_reads(self, trial: Trial) -> None:
        store = trial.store
        store.run(store.jobs.submit([new_job("sync")], ids_are_new=True))
        asyncio.run(store.arun(store.jobs.submit([new_job("async")], ids_are_new=True)))

        assert trial.search() == ["async", "sync"]

    def test_what_one_process_wrote_another_reads_and_settles(self, trial: Trial) -> None:
        job = trial.take(new_job("job"))
        other = trial.elsewhere()
        settlement = settlement_of(SettlementKind.COMPLETED, job)

        other.run(other.jobs.settle([settlement]))

        assert trial.status("job") is JobStatus.COMPLETED

    def test_migrating_again_changes_nothing(self, trial: Trial) -> None:
        trial.submit(new_job("job"))
        version = trial.store.migrate()

        assert version >= 1
        assert trial.store.migrate() == version
        assert trial.status("job") is JobStatus.QUEUED

    def test_many_processes_may_migrate_at_once(self, trial: Trial) -> None:
        stores = [trial.elsewhere() for _ in range(4)]

        versions = at_once(*(store.migrate for store in stores))

        assert set(versions) == {trial.store.migrate()}

    def test_the_store_says_how_it_is_called_and_what_it_is(self, trial: Trial) -> None:
        assert trial.store.label
        facts = trial.store.facts()
        assert facts
        assert all(isinstance(text, str) for pair in facts.items() for text in pair)

    def test_what_was_stored_before_closing_is_there_after_it(self, trial: Trial) -> None:
        other = trial.elsewhere()
        other.run(other.jobs.submit([new_job("job")]))

        other.close()
        other.close()

        assert trial.status("job") is JobStatus.QUEUED


def _in_own_loop(store: Store, plan: Plan[T]) -> T:
    return asyncio.run(store.arun(plan))
