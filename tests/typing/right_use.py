# SPDX-License-Identifier: MIT
"""What type checkers must accept, and which types they must see. Checked, never run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, assert_type

from packhorse import (
    Call,
    Context,
    CoroutineTask,
    Explanation,
    FunctionTask,
    JobHandle,
    JobInfo,
    JobStatus,
    Node,
    Packhorse,
    Priority,
    Progress,
    RetryPolicy,
    Router,
    Snooze,
    Task,
    Unique,
    Workflow,
    chain,
    gather,
)
from packhorse.context import Proceed
from packhorse.core.outcome import Failed, Succeeded
from packhorse.protocol import TaskExecutionResult
from packhorse.workflows.shapes import Arrangement

app = Packhorse("memory://")


@app.task
async def send_email(to: str, subject: str = "") -> dict[str, str]:
    return {to: subject}


@app.middleware
async def watch(ctx: Context, proceed: Proceed) -> None:
    outcome = await proceed()
    if isinstance(outcome, Failed):
        assert_type(outcome.exception, BaseException | None)
    elif isinstance(outcome, Succeeded):
        assert_type(outcome.result, str)


@app.task(queue="mail", timeout="60s", retry=RetryPolicy(max_retries=3), aliases=["old"])
async def send_later(ctx: Context, to: str) -> int:
    ctx.progress(1, 2)
    return len(to)


@app.task
def resize(ctx: Context, path: str, *, width: int = 10) -> str:
    return path * width


@app.task(name="poll", max_snoozes=3, result_ttl=3600)
def poll(number: int, /) -> str | Snooze:
    return Snooze("5m") if number else "done"


@app.task(
    concurrency=1,
    concurrency_key="to",
    rate_limit=(5, "1s"),
    rate_key=lambda to: to,
    unique=Unique(("to", "times"), scope="window", on_conflict="throttle", window="1h"),
    idempotency_window="1h",
)
def limited(to: str, times: int = 1) -> None: ...


@app.task
def nothing() -> None: ...


router = Router(prefix="mail.")


@router.task
async def post(ctx: Context, to: str) -> int:
    return len(to)


@router.task(queue="mail", executor="process")
def fold(paper: str, *, times: int = 1) -> str:
    return paper * times


def routed_tasks_keep_their_types() -> None:
    assert_type(post.enqueue("a"), JobHandle[int])
    assert_type(fold("a", times=2), str)
    assert_type(fold.using(priority="high").enqueue("a").result(), str)
    app.include(router, "shop.mail")
    Packhorse(include=["shop.mail", router])


def declared_tasks_keep_their_types() -> None:
    assert_type(resize("a"), str)
    assert_type(resize("a", width=3), str)
    assert_type(nothing.enqueue(), JobHandle[None])
    task: Task[..., Any] = resize
    plain: FunctionTask[[str], str] = FunctionTask(poll.definition, poll.submission)
    coroutine: CoroutineTask[[str], int] = send_later
    del task, plain, coroutine


def submitted_calls_keep_their_types() -> None:
    job = send_email.enqueue("a", subject="b")
    assert_type(job, JobHandle[dict[str, str]])
    assert_type(job.result(timeout=10), dict[str, str])
    assert_type(job.status(), JobStatus)
    assert_type(job.info(), JobInfo)
    assert_type(job.progress(), Progress | None)
    assert_type(job.history(), list[TaskExecutionResult])
    assert_type(job.cancel(), bool)
    assert_type(send_later.enqueue(to="a").result(), int)
    assert_type(send_later.job("id"), JobHandle[int])
    assert_type(poll.enqueue(1).result(), str | Snooze)


def calls_keep_their_types() -> None:
    call = resize.call("a", width=1)
    assert_type(call, Call[str])
    assert_type(call.using(priority="high"), Call[str])
    assert_type(resize.enqueue_many([call, {"path": "b"}]), list[JobHandle[str]])
    assert_type(app.enqueue_many([call, send_email.call("a")]), list[JobHandle[Any]])


def options_keep_the_types_of_a_task() -> None:
    urgent = resize.using(
        priority=Priority.CRITICAL,
        delay="30s",
        tenant="acme",
        tags=["x"],
        queue="q2",
        timeout=5,
        deadline=datetime.now(UTC),
        retry=RetryPolicy(),
        trace_id="t",
        upstream_request_id="u",
        created_by="c",
        job_id="j",
        ordering_key="o",
        concurrency_key="c",
        rate_key="r",
        weight=2,
        idempotency_key="i",
        idempotency_window="1h",
        unique=Unique(),
        wait="5s",
    )
    assert_type(urgent.enqueue("a", width=2), JobHandle[str])
    assert_type(urgent("a"), str)


async def async_twins_keep_the_types() -> None:
    assert_type(await send_email("a"), dict[str, str])
    job = await send_email.using(scheduled_at=datetime.now(UTC)).aenqueue("a")
    assert_type(job, JobHandle[dict[str, str]])
    assert_type(await job.aresult(timeout="5s"), dict[str, str])
    assert_type(await job.astatus(), JobStatus)
    assert_type(await job.acancel(), bool)
    assert_type(await resize.aenqueue_many([resize.call("a")]), list[JobHandle[str]])


def the_app_is_typed() -> None:
    app.queue("mail", dead_letter="dead", priority=1, retention={"results": "1h"})
    app.queue("sms", concurrency=5, rate_limit=(100, "60s"), max_depth=9, on_full="wait")
    app.queue("slow", ageing="5m", autoscale={"max_workers": 4}, on_dead="hold")
    assert_type(app.job("a"), JobHandle[Any])
    assert_type(app.depth("mail"), int)
    assert_type(app.pause("mail"), bool)
    assert_type(app.pause("mail", key="k"), bool)
    assert_type(app.set_limits("mail", concurrency=5, rate_limit=None), bool)
    assert_type(app.set_limits("mail", None), bool)
    assert_type(app.explain("a"), Explanation)
    assert_type(app.job("a").explain().codes, tuple[str, ...])

    @app.on("job.dead")
    def observe(event: object) -> int:
        return 1

    assert_type(observe(1), int)
    app.run(["mail"], concurrency=5, burst=True, lease="30s", shutdown_timeout=1)


def topics_are_typed() -> None:
    paid = app.topic("order.paid")

    @paid.subscribe
    def ship(order: int) -> str:
        return str(order)

    @paid.subscribe
    async def thank(ctx: Context, order: int) -> bool:
        return bool(order)

    assert_type(ship(17), str)
    assert_type(ship.enqueue(17), JobHandle[str])
    assert_type(thank.enqueue(17), JobHandle[bool])
    assert_type(paid.subscribe(resize)("a", width=3), str)
    assert_type(paid.publish({"order": 17}, idempotency_key="o-17"), list[JobHandle[Any]])
    app.run(reserve={"critical": 2})


def workflows() -> None:
    @app.task
    def charge(order: int) -> int:
        return order

    @app.task
    async def ship(receipt: int, note: str = "") -> str:
        return note * receipt

    @app.task
    def total(amounts: list[int]) -> float:
        return sum(amounts)

    flow = app.workflow("order-17")
    pay = flow.add(charge.call(17))
    assert_type(pay, Node[int])
    assert_type(pay.result, int)
    sent = flow.add(ship.call(pay.result), after=[pay], on_failure="ignore")
    assert_type(sent, Node[str])
    assert_type(flow.start(), Workflow)
    chain(charge.call(1), charge, ship).start()
    assert_type(chain(charge.call(1), charge, charge, charge, charge, ship), Arrangement[Any])
    assert_type(chain(charge.call(1), charge, charge, charge, ship), Arrangement[str])
    gather(charge.call(1), charge.call(2)).then(total).start()
    chain(gather(charge.call(1), charge.call(2)), total).start("named")


async def grows(ctx: Context) -> None:
    node = await ctx.flow.aadd(resize.call("a.png"))
    assert_type(node, Node[str])
    ctx.flow.add(send_email.call(node.result), after=[node])
