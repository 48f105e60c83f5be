# SPDX-License-Identifier: MIT
"""Operations: done by workers in steps, stopped and resumed, and twice to no job."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from packhorse.client.operations import OPERATION_KIND
from packhorse.core.clock import SystemChance
from packhorse.core.policies.records import Put, RecordId
from packhorse.events import JobCancelled
from packhorse.runtime.services.operations import OperationSteps
from packhorse.runtime.services.service import ServiceContext
from packhorse.stores.plan import Plan
from packhorse.stores.requests import JobFilter
from packhorse.testing import TestApp
from tests.web.support import Web, declare, token
from tests.worker.schedule_support import every_store

__all__ = ["every_store"]  # pytest finds the fixture here


class Killed(BaseException):
    """The worker is gone."""


class Mortal:
    """A store whose user is killed behind so many plans, once the last of them has been run."""

    def __init__(self, store: Any, plans: int) -> None:
        self._store, self._left = store, plans

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def arun(self, plan: Plan[Any]) -> Any:
        answer = await self._store.arun(plan)
        self._left -= 1
        if self._left <= 0:
            raise Killed
        return answer


def steps(app: TestApp, store: Any = None, worker: str = "w") -> OperationSteps:
    context = ServiceContext(store or app.store, app.clock, SystemChance(), app.bus, worker)
    return OperationSteps(context)


async def ended(app: TestApp, web: Web, operation: str, worker: str = "w") -> dict[str, Any]:
    """The operation once its steps were taken."""
    service = steps(app, worker=worker)
    for _ in range(100):
        found = await shown(web, operation)
        if found["state"] == "ended":
            return found
        app.clock.advance(await service.run_once())
    raise AssertionError(operation)


async def shown(web: Web, operation: str) -> dict[str, Any]:
    found: dict[str, Any] = (await web.get(f"/operations/{operation}")).json
    return found


@pytest.fixture
def app(packhorse_app: TestApp) -> TestApp:
    declare(packhorse_app)
    return packhorse_app


@pytest.fixture
def web(app: TestApp) -> Web:
    return Web(app, token=token(app, "admin"))


async def died(
    app: TestApp, number: int, tag: int = 0, *, run: bool = True, **more: Any
) -> list[str]:
    calls = [app.tasks["fail"].using(tags=[f"t{tag}"], **more).call() for _ in range(number)]
    handles = await app.aenqueue_many(calls)
    if run:
        await app.arun_jobs()
        app.clock.advance(1)
    return [handle.id for handle in handles]


async def begun(web: Web, **order: Any) -> str:
    got = await web.post("/operations", order)
    assert got.status == 202, got.json
    assert got.headers["location"] == f"/api/v1/operations/{got.json['id']}"
    return str(got.json["id"])


async def test_an_operation_that_cannot_be_read_stops_no_other(app: TestApp, web: Web) -> None:
    bad = Put(RecordId(OPERATION_KIND, "", "bad"), b"{", 0, order=0)
    await app.store.arun(app.store.records.change([bad]))
    await died(app, 3)

    operation = await ended(app, web, await begun(web, action="redrive", tag="t0"))

    assert (operation["done"], operation["refused"]) == (3, 0)
    assert await steps(app).run_once() > 0


async def test_killed_behind_every_plan_it_goes_on_and_redrives_no_job_twice(
    app: TestApp, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.client.operations.STEP_MAX", 2)
    kills = range(1, 19)  # a whole operation takes fewer plans
    ids = {tag: await died(app, 3, tag, run=tag == kills[-1]) for tag in kills}
    operations = []
    for plans in kills:
        operation = await begun(web, action="redrive", tag=f"t{plans}")
        operations.append(operation)
        service = steps(app, Mortal(app.store, plans), f"gone{plans}")
        with contextlib.suppress(Killed):
            while (await shown(web, operation))["state"] != "ended":
                await service.run_once()
        await web.post(f"/operations/{operation}/stop")  # or the next one would go on with it
        app.clock.advance(11)  # another worker is on duty then
    assert (await shown(web, operations[-1]))["state"] == "ended"
    await app.arun_jobs()  # those that were redriven die again
    for operation in operations:
        await web.post(f"/operations/{operation}/resume")

    ends = [await ended(app, web, operation, "heir") for operation in operations]

    await app.arun_jobs()
    assert [(end["done"], end["refused"]) for end in ends] == [(3, 0)] * len(kills)
    infos = [await app.job(job_id).ainfo() for tag in kills for job_id in ids[tag]]
    assert {info.attempts for info in infos} == {2}


async def test_a_purge_is_taken_in_parts_and_goes_on_where_it_was_killed(
    app: TestApp, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.client.operations.STEP_MAX", 2)
    monkeypatch.setattr("packhorse.runtime.services.operations.LOOK_MAX", 40)
    kills = range(1, 24)  # a whole operation takes fewer plans
    for _ in range(5):  # each has others between its jobs
        for tag in kills:
            await died(app, 1, tag, run=False)
    kept = await died(app, 2, run=True)
    before = []
    for plans in kills:
        operation = await begun(web, action="purge", status=["dead"], task="fail", tag=f"t{plans}")
        service = steps(app, Mortal(app.store, plans), f"gone{plans}")
        with contextlib.suppress(Killed):
            while (await shown(web, operation))["state"] != "ended":
                await service.run_once()
        app.clock.advance(11)  # another worker is on duty then
        found = await shown(web, operation)
        left = len((await app.insights.ajobs(JobFilter(tag=f"t{plans}"))).jobs)
        before.append((found["state"], found["done"], left))

        end = await ended(app, web, operation, f"heir{plans}")

        app.clock.advance(11)
        assert end["matched"] == 5
        assert 5 - end["done"] == 5 - found["done"] - left  # removed, but not noted before the kill
    listed = (await app.insights.ajobs(limit=999)).jobs
    assert {job.id for job in listed} == set(kept)
    assert [left for _, _, left in before] == sorted((left for _, _, left in before), reverse=True)
    assert {left for _, _, left in before} >= {5, 3, 1, 0}
    assert before[-1] == ("ended", 5, 0)


async def test_what_matches_is_cancelled_and_what_came_later_is_not(app: TestApp, web: Web) -> None:
    add = app.tasks["add"]
    mine = [await add.using(queue="mail", delay="1h").aenqueue(1, 2) for _ in range(3)]
    other = await add.using(queue="other").aenqueue(1, 2)
    app.clock.advance(1)
    matched = (await web.get("/operations/matching?action=cancel&queue=mail")).json
    operation = await begun(web, action="cancel", queue="mail")
    later = await add.using(queue="mail", delay="1h").aenqueue(1, 2)
    await mine[0].acancel()

    end = await ended(app, web, operation)

    assert matched == {"action": "cancel", "matched": 3, "more": False}
    assert (end["done"], end["refused"], end["matched"]) == (2, 0, 3)
    assert [await job.astatus() for job in mine] == ["cancelled"] * 3
    assert [await job.astatus() for job in (other, later)] == ["queued", "pending"]


async def test_an_operation_tells_of_the_jobs_that_it_cancels(app: TestApp, web: Web) -> None:
    told: list[str] = []
    app.on(JobCancelled)(lambda event: told.append(event.job_id))
    mine = [await app.tasks["add"].using(queue="mail").aenqueue(1, 2) for _ in range(2)]
    app.clock.advance(1)

    await ended(app, web, await begun(web, action="cancel", queue="mail"))

    assert sorted(told) == sorted(job.id for job in mine)


class Meddled:
    """A store in which another writer acts just before the next change of records."""

    def __init__(self, store: Any, meddle: Callable[[], Awaitable[object]]) -> None:
        self._store, self._meddle = store, meddle
        self.armed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def arun(self, plan: Plan[Any]) -> Any:
        if self.armed and plan.verb == "change":
            self.armed = False
            await self._meddle()
        return await self._store.arun(plan)


async def test_one_that_is_stopped_during_a_step_keeps_what_the_step_did_and_stays_stopped(
    packhorse_app: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.client.operations.STEP_MAX", 2)
    declare(packhorse_app)
    app, web = packhorse_app, Web(packhorse_app, token=token(packhorse_app, "admin"))
    await died(app, 3)
    operation = await begun(web, action="redrive")
    store = Meddled(app.store, lambda: web.post(f"/operations/{operation}/stop"))
    service = steps(app, store)
    await service.run_once()  # finds them
    store.armed = True

    await service.run_once()

    stopped = await shown(web, operation)
    assert (stopped["state"], stopped["done"]) == ("stopped", 2)
    await service.run_once()
    assert await shown(web, operation) == stopped
    await web.post(f"/operations/{operation}/resume")
    end = await ended(app, web, operation)
    assert (end["done"], end["refused"]) == (3, 0)
