# SPDX-License-Identifier: MIT
"""Queues in use: paused in whole or in part, drained, and given other limits while they run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse import ConfigError, FunctionTask, JobStatus, Packhorse, QueueClosed, QueueFull
from packhorse.core.job import RateRule
from packhorse.insights import QueueInfo
from packhorse.testing.virtual_clock import VirtualClock
from tests.unit.app_support import STORES, HandWorker, app_on

Work = FunctionTask[..., None]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(params=STORES)
def app(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> Iterator[Packhorse]:
    made = app_on(request.param, tmp_path, clock)
    yield made
    made.close()


@pytest.fixture
def work(app: Packhorse) -> Work:
    @app.task(concurrency=100, concurrency_key="who", rate_key="who")
    def work(who: str = "") -> None: ...

    return work


@pytest.fixture
def worker(app: Packhorse) -> HandWorker:
    return HandWorker(app.store, "work")


def queue_of(app: Packhorse, name: str = "default") -> QueueInfo:
    return next(queue for queue in app.insights.queues() if queue.name == name)


# --------------------------------------------------------------------------------- mistyped


@pytest.mark.parametrize(
    "steer",
    [
        lambda app: app.pause("defualt"),
        lambda app: app.close_queue("defualt"),
        lambda app: app.set_limits("defualt", concurrency=1),
    ],
)
def test_a_queue_that_looks_mistyped_is_warned_of(app: Packhorse, steer: Any) -> None:
    @app.task
    def later() -> None: ...

    with pytest.warns(
        UserWarning, match="no queue 'defualt' is declared here; did you mean 'def"
    ) as said:
        steer(app)

    assert [warning.filename for warning in said] == [__file__]


def test_a_chosen_queue_is_warned_of_once_and_only_if_it_looks_mistyped(app: Packhorse) -> None:
    app.queue("import-1")

    @app.task
    def later() -> None: ...

    with pytest.warns(UserWarning, match="defualt"):
        later.using(queue="defualt").enqueue()

    for queue in ("defualt", "default", "import-1", "import-2", "something else"):
        later.using(queue=queue).enqueue()  # a warning would be an error here


# ------------------------------------------------------------------------------ pause, drain


@pytest.mark.parametrize(
    ("paused", "held"),
    [
        ({}, ["ada", "acme", "line", "bob"]),
        ({"key": "ada"}, ["ada"]),
        ({"key": "line"}, ["line"]),
        ({"tenant": "acme"}, ["acme"]),
        ({"tenant": ""}, ["ada", "line", "bob"]),
    ],
)
def test_a_queue_a_key_or_a_tenant_is_paused_and_others_go_on(
    app: Packhorse, work: Work, worker: HandWorker, paused: Any, held: list[str]
) -> None:
    jobs = {
        "ada": work.enqueue("ada").id,
        "acme": work.using(tenant="acme").enqueue("x").id,
        "line": work.using(ordering_key="line").enqueue("y").id,
        "bob": work.enqueue("bob").id,
    }

    assert (app.pause("default", **paused), app.pause("default", **paused)) == (True, False)
    given = {job.id for job in worker.take(10)}
    assert given == {job_id for name, job_id in jobs.items() if name not in held}

    assert (app.resume("default", **paused), app.resume("default", **paused)) == (True, False)
    assert {job.id for job in worker.take(10)} == {jobs[name] for name in held}


async def test_pausing_has_async_twins(app: Packhorse, work: Work) -> None:
    await work.aenqueue("ada")

    assert await app.apause("default", key="ada")
    assert await app.apause("default", tenant="acme")
    seen = await asyncio.to_thread(queue_of, app)
    assert (seen.paused, seen.paused_keys, seen.paused_tenants) == (False, ("ada",), ("acme",))
    assert await app.aresume("default", key="ada")
    assert await app.aresume("default", tenant="acme")


def test_a_key_and_a_tenant_at_once_are_refused(app: Packhorse) -> None:
    with pytest.raises(ConfigError, match="cannot be paused or resumed together"):
        app.pause("default", key="a", tenant="b")


@pytest.mark.parametrize("part", [{"tenant": None}, {"tenant": 7}, {"key": None}])
async def test_a_part_that_names_nothing_is_not_the_whole_queue(app: Packhorse, part: Any) -> None:
    for verb in (app.pause, app.resume):
        with pytest.raises(ConfigError, match=r"\('default'\): (tenant|key) is .*; give a text"):
            verb("default", **part)
    for averb in (app.apause, app.aresume):
        with pytest.raises(ConfigError, match=r"give a text"):
            await averb("default", **part)
    with pytest.raises(ConfigError, match="did you mean 'tenant'"):
        app.pause("default", tenants="acme")  # type: ignore[call-arg]

    assert app.pause("default") is True


def test_a_drained_queue_takes_nothing_new_and_finishes_what_it_has(
    app: Packhorse, work: Work, worker: HandWorker, clock: VirtualClock
) -> None:
    job = work.enqueue()

    assert (app.close_queue("default"), app.close_queue("default")) == (True, False)
    with pytest.raises(QueueClosed, match="'default' is closed") as raised:
        work.enqueue()
    assert raised.value.queue == "default"
    worker.fail()
    clock.advance(60)
    worker.complete()
    assert job.status() is JobStatus.COMPLETED
    assert queue_of(app).closed

    assert (app.open_queue("default"), app.open_queue("default")) == (True, False)
    work.enqueue()


async def test_draining_has_async_twins(app: Packhorse, work: Work) -> None:
    assert await app.aclose_queue("default")
    with pytest.raises(QueueClosed):
        await work.aenqueue()
    assert await app.aopen_queue("default")
    await work.aenqueue()


# --------------------------------------------------------------------------------- set limits


def test_limits_are_changed_while_the_queue_is_in_use(
    app: Packhorse, work: Work, worker: HandWorker
) -> None:
    app.queue("default", concurrency=1, priority=3, dead_letter="dead")
    work.enqueue_many([{}] * 5)
    assert len(worker.take(10)) == 1

    assert app.set_limits("default", concurrency=3)
    assert len(worker.take(10)) == 2

    assert not app.set_limits("default", concurrency=3)
    seen = queue_of(app)
    assert (seen.overridden, seen.priority, seen.dead_letter) == (True, 3, "dead")
    assert app.set_limits("default", concurrency=None)
    assert len(worker.take(10)) == 2


def test_a_set_limit_beats_every_declaration_until_it_is_ended(app: Packhorse, work: Work) -> None:
    app.queue("default", max_depth=5)
    work.enqueue()
    app.set_limits("default", max_depth=1)

    app.queue("default", max_depth=7)
    with pytest.raises(QueueFull, match="max_depth is 1"):
        work.enqueue()

    assert app.set_limits("default", None)
    assert not app.set_limits("default", None)
    work.enqueue()
    assert (queue_of(app).settings.max_depth, queue_of(app).overridden) == (7, False)


async def test_setting_limits_has_async_twins(app: Packhorse, work: Work) -> None:
    await work.aenqueue()

    assert await app.aset_limits("default", rate_limit=(5, "1m"))
    seen = await asyncio.to_thread(queue_of, app)
    assert seen.settings.rate == RateRule(5, 60_000_000)
    assert await app.aset_limits("default", None)


def test_what_this_app_declares_stays_when_a_limit_is_set_before_anything_was_told(
    app: Packhorse,
) -> None:
    app.queue("mail", dead_letter="mail_dead", concurrency=2)

    app.set_limits("mail", concurrency=1)

    settings = queue_of(app, "mail").settings
    assert (settings.dead_letter, settings.concurrency) == ("mail_dead", 1)


def test_ageing_and_fairness_replace_each_other_when_they_are_set(
    app: Packhorse, work: Work
) -> None:
    app.queue("default")
    work.enqueue()

    app.set_limits("default", ageing="5m")
    aged = queue_of(app).settings
    app.set_limits("default", ageing=None)
    fair = queue_of(app).settings

    assert (aged.ageing_us, aged.fair) == (300_000_000, False)
    assert (fair.ageing_us, fair.fair) == (None, True)


@pytest.mark.parametrize(
    ("args", "options", "words"),
    [
        ((), {}, "no limit is named"),
        ((5,), {}, "give limits by name"),
        ((None,), {"concurrency": 1}, "give limits by name"),
        ((), {"concurrency": 0}, "queue 'default': concurrency is 0"),
        ((), {"on_full": "wait"}, "there is no max_depth"),
        ((), {"concurency": 1}, "did you mean 'concurrency'?"),
        ((), {"dead_letter": "x"}, "there is no option 'dead_letter'"),
    ],
)
def test_limits_that_cannot_be_set_are_refused(
    app: Packhorse, args: Any, options: Any, words: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        app.set_limits("default", *args, **options)

    assert words in str(raised.value)
    assert app.insights.queues() == ()


async def test_the_older_names_of_closing_and_opening_still_work_and_warn(app: Packhorse) -> None:
    with pytest.warns(DeprecationWarning, match=r"adrain\(\) is called aclose_queue\(\)"):
        assert await app.adrain("default")
    with pytest.warns(DeprecationWarning, match=r"aopen\(\) is called aopen_queue\(\)"):
        assert await app.aopen("default")
    with pytest.warns(DeprecationWarning, match=r"drain\(\) is called close_queue\(\)"):
        assert await asyncio.to_thread(app.drain, "default")
    with pytest.warns(DeprecationWarning, match=r"open\(\) is called open_queue\(\)"):
        assert await asyncio.to_thread(app.open, "default")
