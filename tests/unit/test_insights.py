# SPDX-License-Identifier: MIT
"""The read-only view: what it counts, what it lists, and what it cannot see."""

from __future__ import annotations

import warnings

import pytest

from packhorse import AttemptError, JobNotFound, JobStatus, Packhorse
from packhorse.core.outcome import Succeeded, TimedOut
from packhorse.insights import Insights
from packhorse.protocol import WorkerStats, to_wire
from packhorse.stores.requests import JobFilter
from packhorse.testing.virtual_clock import VirtualClock
from tests.unit.app_support import NO_RETRY, HandWorker, memory_app

TIMEOUT = AttemptError(type="Timeout", message="took too long", code="TASK_TIMEOUT")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def app(clock: VirtualClock) -> Packhorse:
    app = memory_app(clock)
    app.queue("mail", priority=1, dead_letter="mail_dead")

    @app.task(queue="mail")
    def send(to: str = "a") -> None: ...

    @app.task
    def work() -> None: ...

    return app


@pytest.fixture
def worker(app: Packhorse) -> HandWorker:
    return HandWorker(app.store, "send", "work", queues=("mail", "default"))


@pytest.mark.req("S1-61")
def test_stats_of_an_empty_store_have_no_average(app: Packhorse) -> None:
    stats = app.insights.stats("w1")

    assert to_wire(stats) == {
        "workerName": "w1",
        "totalProcessed": 0,
        "succeeded": 0,
        "failed": 0,
        "active": 0,
        "uptimeMs": 0,
        "queues": {},
    }


@pytest.mark.req("S1-60")
def test_stats_count_jobs_per_queue_and_together(
    app: Packhorse, worker: HandWorker, clock: VirtualClock
) -> None:
    app.enqueue_many([app.tasks["send"].call() for _ in range(4)])
    app.tasks["work"].using(delay="1h").enqueue()
    for _ in range(2):
        job = worker.claim()
        clock.advance(0.5)
        worker.settle(job, Succeeded("null"))
    worker.fail(NO_RETRY)
    worker.claim()
    clock.advance(1)

    stats = app.insights.stats()

    assert (stats.total_processed, stats.succeeded, stats.failed, stats.active) == (3, 2, 1, 1)
    assert stats.avg_execution_ms == pytest.approx(1000 / 3)
    assert stats.uptime_ms == 2000
    assert to_wire(stats)["queues"] == {
        "mail": {"pending": 0, "active": 1, "completed": 2, "failed": 1},
        "default": {"pending": 1, "active": 0, "completed": 0, "failed": 0},
    }
    assert WorkerStats.parse(to_wire(stats)) == stats


@pytest.mark.req("S1-62")
def test_retries_and_timeouts_count_once_their_job_is_over_and_cancelled_jobs_never(
    app: Packhorse, worker: HandWorker, clock: VirtualClock
) -> None:
    retried, timed_out, cancelled = (app.tasks["send"].enqueue() for _ in range(3))
    cancelled.cancel()
    worker.fail()
    worker.settle(worker.claim(), TimedOut(TIMEOUT))
    assert [job.status() for job in (retried, timed_out)] == [JobStatus.FAILED, JobStatus.TIMEOUT]

    waiting = app.insights.stats()
    assert (waiting.total_processed, to_wire(waiting)["queues"]["mail"]["pending"]) == (0, 2)

    clock.advance(120)
    worker.complete()
    worker.settle(worker.claim(), TimedOut(TIMEOUT), NO_RETRY)

    over = app.insights.stats()
    assert (over.succeeded, over.failed, over.total_processed) == (1, 1, 2)


def test_queues_show_their_settings_counts_and_age(
    app: Packhorse, worker: HandWorker, clock: VirtualClock
) -> None:
    app.tasks["send"].enqueue()
    clock.advance(90)
    app.enqueue_many([app.tasks["send"].call(), app.tasks["send"].call().using(delay=60)])
    app.pause("default")

    default, mail = app.insights.queues()

    assert (default.name, default.paused, default.declared, default.depth) == (
        *("default", True, False),
        0,
    )
    assert (mail.name, mail.priority, mail.dead_letter, mail.paused) == (
        *("mail", 1, "mail_dead"),
        False,
    )
    assert mail.depth == 3
    assert mail.counts == {JobStatus.PENDING: 1, JobStatus.QUEUED: 2}
    assert mail.oldest_ready_s == 90
    assert mail.oldest_ready_s_by_priority == {"normal": 90}
    assert default.oldest_ready_s is None


def test_queues_the_app_declares_are_known_before_the_store_is_told(app: Packhorse) -> None:
    (mail,) = app.insights.queues()
    app.pause("mail")
    app.queue("mail", priority=2)
    (paused,) = app.insights.queues()

    assert (mail.name, mail.declared, mail.priority, mail.depth) == ("mail", True, 1, 0)
    assert (paused.declared, paused.priority, paused.paused) == (True, 2, True)
    assert [state.declared for state in app.store.run(app.store.queues.queues())] == [False]


def test_what_holds_in_the_store_beats_what_the_app_declares(app: Packhorse) -> None:
    app.set_limits("mail", concurrency=5)
    app.tasks["send"].enqueue()
    other = Packhorse(store=app.store)
    other.queue("mail", priority=7, concurrency=9)

    app.set_limits("mail", None)
    (told,) = other.insights.queues()
    app.set_limits("mail", concurrency=5)
    (overridden,) = other.insights.queues()

    assert (told.priority, told.settings.concurrency) == (1, None)
    assert (overridden.overridden, overridden.settings.concurrency) == (True, 5)


def test_workers_are_shown_with_what_they_serve(
    app: Packhorse, worker: HandWorker, clock: VirtualClock
) -> None:
    app.tasks["send"].enqueue()
    worker.claim()

    (seen,) = app.insights.workers()
    assert (seen.id, seen.queues, seen.tasks, seen.live) == (
        *("by-hand", ("mail", "default")),
        *(("send", "work"), True),
    )

    clock.advance(31)
    (gone,) = app.insights.workers()
    assert not gone.live
    assert gone.expires_at == seen.expires_at
    assert app.insights.stats().uptime_ms == 0


@pytest.mark.req("S2-11")
def test_dead_letters_are_listed_and_shown_with_their_history(
    app: Packhorse, worker: HandWorker
) -> None:
    job = app.tasks["send"].enqueue()
    worker.fail(NO_RETRY)
    app.tasks["work"].enqueue()

    (dead,) = app.insights.dead_letters().jobs
    assert (dead.id, dead.dead_reason, dead.dead_letter) == (job.id, "poison_message", "mail_dead")
    assert app.insights.dead_letters(JobFilter(queue="default")).jobs == ()

    detail = app.insights.job(job.id)
    assert detail.info == dead
    assert [attempt.attempt for attempt in detail.history] == [1]
    with pytest.raises(JobNotFound):
        app.insights.job("nothing")


def test_pages_follow_each_other_newest_first(app: Packhorse) -> None:
    jobs = [app.tasks["send"].enqueue().id for _ in range(5)]

    first = app.insights.jobs(JobFilter(), limit=3)
    second = app.insights.jobs(JobFilter(), limit=3, after=first.after)

    assert [info.id for info in (*first.jobs, *second.jobs)] == jobs[::-1]
    assert second.after is None


def test_a_tenants_view_is_narrowed_whatever_is_asked(app: Packhorse) -> None:
    mine = app.tasks["send"].using(tenant="mine").enqueue()
    other = app.tasks["send"].using(tenant="other").enqueue()
    view = Insights(app.store, tenant="mine")

    assert [info.id for info in view.jobs(JobFilter(tenant="other")).jobs] == [mine.id]
    assert view.job(mine.id).info.tenant == "mine"
    with pytest.raises(JobNotFound):
        view.job(other.id)


async def test_every_view_has_a_twin_that_sees_the_same(app: Packhorse) -> None:
    job = await app.tasks["work"].aenqueue()
    view = app.insights

    with pytest.warns(RuntimeWarning, match="await their twins"):
        seen = view.jobs()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert await view.ajobs() == seen
        assert (await view.ajob(job.id)).info.id == job.id
        assert (await view.adead_letters()).jobs == ()
        assert [queue.depth for queue in await view.aqueues()] == [1, 0]
        assert (await view.aworkers(), (await view.ascaling())[0].ready) == ((), 1)
        assert to_wire(await view.astats())["queues"]["default"]["pending"] == 1
    with pytest.raises(JobNotFound):
        await view.ajob("nothing")
