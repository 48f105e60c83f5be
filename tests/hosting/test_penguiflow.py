# SPDX-License-Identifier: MIT
"""A host of PenguiFlow knows each of its ways, P1 to P15 of the requirements."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any

import pytest
from penguiflow import FinalAnswer, Message
from penguiflow.metrics import FlowEvent

from packhorse import JobStatus, RetryPolicy
from packhorse.errors import ConfigError, JobCancelled
from packhorse.hosting.penguiflow import FlowHost
from tests.hosting.support import Yard, node


async def answer(message: Message, _context: Any) -> Message:
    return message.model_copy(update={"payload": {"answer": message.payload["question"] + "?"}})


async def fail(message: Message, _context: Any) -> Message:
    raise ValueError(f"no answer to {message.payload['question']}")


async def passes(message: Message, _context: Any) -> Message:
    return message


@pytest.mark.req("S3-3", "S3-6")
async def test_a_message_has_the_tenant_the_deadline_and_a_trace_of_its_attempt(yard: Yard) -> None:
    seen: list[Message] = []

    async def look(message: Message, _context: Any) -> Message:
        seen.append(message)
        return message

    job = await yard.ask.using(tenant="acme", timeout="20s").aenqueue("why")
    before = time.time()
    await yard.host(look).run(burst=True)

    [message] = seen
    info = await job.ainfo()
    assert (await job.aresult(), message.headers.tenant) == ({"question": "why"}, "acme")
    assert message.trace_id.startswith(info.trace_id)
    assert message.meta["job_id"] == job.id
    # P3: an instant, not a span; a span would have expired before the first node.
    assert message.deadline_s is not None
    assert before + 19 < message.deadline_s < time.time() + 20


@pytest.mark.req("S3-12")
@pytest.mark.parametrize("emits", [False, True], ids=["P1", "P2"])
async def test_a_node_that_raises_fails_its_job_at_once(yard: Yard, *, emits: bool) -> None:
    began = time.monotonic()
    job = await yard.ran(fail, flow={"emit_errors_to_rookery": emits})

    info = await job.ainfo()
    assert info.status is JobStatus.DEAD
    assert info.error is not None
    assert (info.error.type, info.error.reason) == ("ValueError", "exception:ValueError")
    assert "no answer to why" in info.error.message
    assert time.monotonic() - began < 15  # P1: a fetch alone would wait for 20 s


@pytest.mark.req("S3-11")
async def test_the_answer_that_a_deadline_passed_is_a_timeout(yard: Yard) -> None:
    """P4 and P5: it looks like any other answer, and comes when a node is done, not before."""

    async def late(message: Message, _context: Any) -> Message:
        return message.model_copy(update={"deadline_s": time.time() - 1})

    async def says(message: Message, _context: Any) -> Message:
        return message.model_copy(update={"payload": FinalAnswer(text="Deadline exceeded")})

    for work, nodes in ((late, (node(answer, "second"),)), (says, ())):
        job = await yard.ran(work, *nodes)
        info = await job.ainfo()
        assert info.error is not None
        assert (info.status, info.error.reason) == (JobStatus.DEAD, "job_timeout")
    skipped = [each.node for each in yard.told("flow.trouble") if each.event == "deadline_skip"]
    assert skipped == ["second"]


@pytest.mark.req("S3-7", "S3-9", "S3-16")
async def test_a_node_that_runs_on_is_cancelled_at_the_bound_of_its_job(yard: Yard) -> None:
    """P5, P9: a deadline interrupts nothing, and a cancelled trace has no result."""
    ended = asyncio.Event()

    async def stuck(message: Message, _context: Any) -> Message:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return message

    job = await yard.ran(stuck, timeout="300ms")

    info = await job.ainfo()
    assert info.error is not None
    assert (info.error.type, info.error.reason) == ("Timeout", "job_timeout")
    assert ended.is_set()
    events = [each.event for each in yard.told("flow.trouble")]
    assert events.count("trace_cancel_start") == 1


@pytest.mark.req("S3-27")
async def test_a_flow_without_an_answer_is_ended_by_the_bound_of_its_job(yard: Yard) -> None:
    """P8: a last node that returns None."""

    async def silent(message: Message, _context: Any) -> None:
        return None

    job = await yard.ran(silent, timeout="300ms", mode="long_lived")

    info = await job.ainfo()
    assert info.error is not None
    assert info.error.reason == "job_timeout"
    assert "cancelled" in yard.told("flow.rebuilt")[0].reason  # P6: cancel says False


@pytest.mark.req("S3-4", "S3-20")
async def test_a_retry_does_not_wait_for_the_trace_of_the_attempt_before(yard: Yard) -> None:
    """P7: that one keeps its lock in a flow that lives on."""
    tries: list[str] = []

    async def second_time(message: Message, _context: Any) -> Any:
        tries.append(message.trace_id)
        return None if len(tries) == 1 else message

    yard.app.queue("flows", retry=RetryPolicy(max_retries=1, initial_delay="10ms"))
    job = await yard.ask.using(timeout="300ms").aenqueue("why")
    host = yard.host(second_time, mode="long_lived")
    running = asyncio.create_task(host.run())
    assert await job.aresult(timeout=20) == {"question": "why"}
    host.stop()
    await running

    assert len(set(tries)) == 2


@pytest.mark.req("S3-8")
async def test_handing_in_a_message_is_within_the_bound_too(yard: Yard) -> None:
    """P10: a full queue keeps `emit` waiting."""
    gate = asyncio.Event()

    async def closed(message: Message, _context: Any) -> Message:
        await gate.wait()
        return message

    jobs = [await yard.ask.using(timeout="500ms").aenqueue(str(n)) for n in range(4)]
    async with asyncio.timeout(30):
        host = yard.host(closed, mode="long_lived", loops=4, flow={"queue_maxsize": 1})
        await host.run(burst=True)

    assert {await job.astatus() for job in jobs} == {JobStatus.DEAD}


@pytest.mark.req("S3-13")
async def test_a_node_that_swallows_its_cancellation_holds_up_nothing(yard: Yard) -> None:
    release = asyncio.Event()

    async def stubborn(message: Message, _context: Any) -> Message:
        if message.payload["question"] == "why":
            while not release.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await release.wait()
        return message

    job = await yard.ran(stubborn, timeout="200ms", mode="long_lived")
    other = await yard.ask.aenqueue("how")
    async with asyncio.timeout(30):
        await yard.host(stubborn, mode="long_lived").run(burst=True)
    release.set()

    assert (await job.ainfo()).status is JobStatus.DEAD
    assert await other.aresult() == {"question": "how"}
    [rebuilt] = yard.told("flow.rebuilt")
    assert not rebuilt.stopped


@pytest.mark.req("S3-44", "S3-34")
async def test_every_kind_of_event_reaches_our_log_and_our_figures(
    yard: Yard, caplog: pytest.LogCaptureFixture
) -> None:
    """P11, P12, P14: through our own logger, and labelled by node alone."""
    tries: list[int] = []

    async def shaky(message: Message, _context: Any) -> Message:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError
        return message

    job = await yard.ask.aenqueue("why")
    with caplog.at_level(logging.DEBUG, logger="packhorse.consumer"):
        again = node(shaky, "shaky", max_retries=1, backoff_base=0.001)
        host = yard.host(passes, again, node(answer, "answer"))
        await host.run(burst=True)

    events = [(each.event, each.node) for each in yard.told("flow.event")]
    assert ("node_success", "answer") in events
    trouble = yard.told("flow.trouble")
    assert {each.event for each in trouble} >= {"node_error", "node_retry"}
    assert {each.job_id for each in trouble} == {job.id}
    latencies = [each.latency_ms for each in yard.told("flow.event") if each.latency_ms is not None]
    assert latencies
    lines = [
        record.getMessage() for record in caplog.records if record.name.startswith("packhorse")
    ]
    assert any("node_retry of node shaky" in line for line in lines)
    text = host.figures.text()
    assert 'packhorse_flow_node_seconds_count{node="answer"} 1' in text
    assert 'packhorse_flow_events_total{node="shaky",event="node_retry"} 1' in text
    assert job.id not in text
    assert all(each.node_id not in text for flow in yard.built for each in flow._nodes)


@pytest.mark.req("S3-37")
async def test_an_observer_that_raises_harms_no_job(yard: Yard) -> None:
    """P13: the runtime logs what a middleware raises; ours has nothing to raise."""

    @yard.app.on("flow.event")
    def broken(event: FlowEvent) -> None:
        raise RuntimeError

    job = await yard.ran(answer)

    assert await job.aresult() == {"answer": "why?"}


@pytest.mark.req("S3-13")
async def test_blocking_code_in_a_node_is_a_timeout_when_it_is_over(yard: Yard) -> None:
    """P15: nothing can interrupt it, and it holds up the loop; its answer comes too late."""

    async def blocks(message: Message, _context: Any) -> Message:
        time.sleep(0.4)
        return message

    job = await yard.ran(blocks, timeout="200ms")

    info = await job.ainfo()
    assert info.error is not None
    assert info.error.reason == "job_timeout"


async def test_what_is_no_mode_is_refused(yard: Yard) -> None:
    with pytest.raises(ConfigError, match="neither"):
        yard.host(answer, mode="eternal")
    with pytest.raises(ConfigError, match="at least 1"):
        yard.host(answer, rebuild_after=(0, 1))


@pytest.mark.req("S3-5", "S3-19")
async def test_each_job_has_its_own_answer_and_by_default_a_flow_of_its_own(yard: Yard) -> None:
    jobs = [await yard.ask.aenqueue(str(number)) for number in range(6)]
    await yard.host(answer, loops=3).run(burst=True)

    assert [await job.aresult() for job in jobs] == [{"answer": f"{n}?"} for n in range(6)]
    assert len(yard.built) == 6
    assert not any(flow._running for flow in yard.built)


@pytest.mark.req("S3-18", "S3-20")
async def test_a_long_lived_flow_is_rebuilt_after_jobs_failures_and_surprises(yard: Yard) -> None:
    async def some(message: Message, context: Any) -> Message:
        if message.payload["question"] == "fail":
            raise ValueError
        return await answer(message, context)

    def told() -> list[str]:
        return [each.reason for each in yard.told("flow.rebuilt")]

    async def run(*questions: str, host: FlowHost) -> None:
        for question in questions:
            await yard.ask.aenqueue(question)
        await host.run(burst=True)

    shared = {"mode": "long_lived", "loops": 1}
    await run("a", "b", "c", host=yard.host(some, rebuild_after=(2, 9), **shared))
    assert (told(), len(yard.built)) == (["2 jobs"], 2)
    await run("fail", "fail", "a", host=yard.host(some, rebuild_after=(9, 2), **shared))
    assert told()[1:] == ["2 failures"]

    surprised = yard.host(some, message=_surprise, **shared)
    await run("a", "b", host=surprised)
    assert told()[2:] == ["an unexpected exception"]
    assert not any(flow._running for flow in yard.built)


def _surprise(job: Any) -> Any:
    if job.payload["question"] == "a":
        raise LookupError("no such payload")
    return job.payload


@pytest.mark.req("S3-15", "S3-17")
async def test_a_job_that_is_cancelled_leaves_its_flow_and_the_others_go_on(yard: Yard) -> None:
    began = asyncio.Event()

    async def waits(message: Message, context: Any) -> Message:
        if message.payload["question"] == "why":
            began.set()
            await asyncio.sleep(60)
        return await answer(message, context)

    job, other = await yard.ask.aenqueue("why"), await yard.ask.aenqueue("how")
    host = yard.host(waits, mode="long_lived")
    running = asyncio.create_task(host.run())
    await began.wait()
    assert await job.acancel()

    with pytest.raises(JobCancelled):
        await job.aresult(timeout=20)
    assert await other.aresult(timeout=20) == {"answer": "how?"}
    host.stop()
    await asyncio.wait_for(running, 20)


async def test_a_result_that_is_no_json_is_a_dead_letter(yard: Yard) -> None:
    async def odd(message: Message, _context: Any) -> Message:
        return message.model_copy(update={"payload": object()})

    info = await (await yard.ran(odd)).ainfo()

    assert info.error is not None
    assert (info.status, info.error.reason) == (JobStatus.DEAD, "invalid_result")


async def test_a_flow_that_was_stopped_from_inside_is_rebuilt(yard: Yard) -> None:
    """P6: `cancel` raises then."""

    async def stops(message: Message, context: Any) -> Message:
        if message.payload["question"] == "why":
            context.runtime._running = False
            await asyncio.sleep(60)
        return message

    job = await yard.ran(stops, timeout="300ms", mode="long_lived")

    assert (await job.ainfo()).status is JobStatus.DEAD
    assert [each.reason for each in yard.told("flow.rebuilt")] == ["a flow that does not cancel"]
    for task in yard.built[0]._tasks:  # nothing else would
        task.cancel()
