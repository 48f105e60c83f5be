# SPDX-License-Identifier: MIT
"""A queue that is told to has no two jobs with one trace id, on every store."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from packhorse import ConfigError, FunctionTask, JobConflict, Packhorse

NewApp = Callable[[], Packhorse]
Work = FunctionTask[..., None]


def work_of(app: Packhorse, queue: str = "flows", **options: bool) -> Work:
    app.queue(queue, **options)  # type: ignore[arg-type]  # one option of them all

    @app.task(queue=queue)
    def work(number: int = 0) -> None: ...

    return work


@pytest.mark.req("S3-46")
async def test_a_trace_id_belongs_to_one_job_over_tenants_and_processes(new_app: NewApp) -> None:
    here, there = (work_of(new_app(), unique_traces=True) for _ in range(2))
    first = await here.using(trace_id="t", tenant="acme").aenqueue(1)

    for other in (
        there.using(trace_id="t", tenant="other").call(1),
        there.using(trace_id="t", tenant="acme").call(2),
        there.using(job_id="t").call(1),
    ):
        with pytest.raises(JobConflict, match="belongs to another job"):
            await there.aenqueue_many([there.call(3), other])
    again = await there.using(trace_id="t", tenant="acme").aenqueue(1)

    assert (again.id, again.deduplicated) == (first.id, True)
    assert (await first.ainfo()).trace_id == "t"


@pytest.mark.req("S3-46")
async def test_a_trace_that_was_made_up_is_taken_as_one_that_was_given(new_app: NewApp) -> None:
    app = new_app()
    work = work_of(app, unique_traces=True)
    wire = {"id": "w", "type": "work", "payload": {}, "queue": "flows"}
    made_up = [await work.aenqueue(1), await work.using(priority="low").aenqueue(1)]
    made_up += [*await work.aenqueue_many([work.call(1)]), await app.asubmit(wire)]

    for job in made_up:
        trace_id = (await job.ainfo()).trace_id
        with pytest.raises(JobConflict):
            await work.using(trace_id=trace_id, tenant="other").aenqueue(1)


async def test_other_queues_go_on_to_share_traces(new_app: NewApp) -> None:
    app = new_app()
    work_of(app, "elsewhere", unique_traces=True)
    plain = app.task(name="plain")(lambda: None)

    jobs = [await plain.using(trace_id="t").aenqueue() for _ in range(2)]

    assert [(await job.ainfo()).trace_id for job in jobs] == ["t", "t"]
    assert jobs[0].id != jobs[1].id


def test_an_id_that_is_not_the_trace_id_is_refused_there() -> None:
    app = Packhorse("memory://")
    work = work_of(app, unique_traces=True)

    with pytest.raises(ConfigError, match=r"job_id 'a' and trace_id 't'.*give one of them"):
        work.using(job_id="a", trace_id="t").enqueue()

    assert work.using(job_id="a", trace_id="a").enqueue().id == "a"
    assert app.depth("flows") == 1
    app.close()
