# SPDX-License-Identifier: MIT
"""Declaring tasks, calling them directly, and submitting calls of them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

import packhorse
from packhorse import (
    Call,
    ConfigError,
    Context,
    CoroutineTask,
    FunctionTask,
    Packhorse,
    PayloadError,
    Priority,
    RetryPolicy,
    UsageError,
)
from packhorse.client.declarations import Declarations
from packhorse.client.registry import Registry
from packhorse.client.submission import new_job
from packhorse.core.clock import new_id, to_datetime
from packhorse.core.job import JobStatus, NewJob
from tests.unit.app_support import memory_app

if TYPE_CHECKING:
    from packhorse import Context as OnlyForCheckers

WHEN = datetime(2026, 6, 1, 12, tzinfo=UTC)


@pytest.fixture
def app() -> Packhorse:
    return memory_app()


def stored(call: Call[Any]) -> NewJob:
    return new_job(call, Declarations(Registry()), new_id())


# ----------------------------------------------------------------------------------- declaring


async def test_a_bare_decorator_keeps_the_function_callable(app: Packhorse) -> None:
    @app.task
    def double(number: int) -> int:
        """Twice as much."""
        return number * 2

    @app.task
    async def halve(number: int) -> float:
        return number / 2

    assert double(4) == 8
    assert await halve(4) == 2
    assert isinstance(double, FunctionTask)
    assert isinstance(halve, CoroutineTask)
    assert (double.__name__, double.__doc__) == ("double", "Twice as much.")
    assert list(inspect.signature(double).parameters) == ["number"]


def test_options_are_kept_with_the_task(app: Packhorse) -> None:
    @app.task(
        name="send",
        queue="mail",
        timeout="90s",
        retry=RetryPolicy(max_retries=7),
        aliases=["send_email", "mail_it"],
        max_crashes=5,
        max_snoozes=9,
        result_ttl="1h",
    )
    def send_it() -> None: ...

    definition = send_it.definition

    assert (definition.name, definition.queue, definition.kind) == ("send", "mail", "thread")
    assert definition.timeout_us == 90_000_000
    assert definition.retry is not None
    assert definition.retry.max_retries == 7
    assert (definition.max_crashes, definition.max_snoozes) == (5, 9)
    assert definition.result_keep_us == 3_600_000_000
    assert app.registry.names == ("send", "send_email", "mail_it")
    assert app.registry.get("mail_it") is definition
    assert app.tasks["send"] is send_it


def test_a_context_is_injected_and_not_part_of_the_call(app: Packhorse) -> None:
    @app.task
    def resize(ctx: Context, path: str) -> tuple[str, int]:
        ctx.progress(1, 2)
        return (path, ctx.job.attempt)

    @app.task
    async def resize_async(ctx: packhorse.Context, path: str) -> str:
        return f"{ctx.job.task} {path}"

    assert resize("a.png") == ("a.png", 1)
    assert asyncio.run(resize_async("b.png")) == "resize_async b.png"
    assert resize.call("a.png").payload == b'{"path":"a.png"}'
    with pytest.raises(PayloadError, match="'ctx' is not known"):
        resize.call(ctx=1, path="a.png")  # type: ignore[call-arg]


def test_names_of_the_surrounding_function_may_be_used_in_annotations(app: Packhorse) -> None:
    @dataclass
    class Pair:
        a: int
        b: int

    @app.task
    def add(pair: Pair) -> int:
        return pair.a + pair.b

    assert add.call(Pair(1, 2)).payload == b'{"pair":{"a":1,"b":2}}'


def plain() -> None: ...
def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


def late_context(path: str, ctx: Context) -> None: ...
def checked_context(ctx: OnlyForCheckers, path: str) -> None: ...
async def coroutine() -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        (plain, {"name": "Send"}, "'Send' cannot name a task"),
        (plain, {"name": "send\n"}, "cannot name a task"),
        (plain, {"name": "send-mail"}, "cannot name a task"),
        (plain, {"aliases": ["1st"]}, "'1st' cannot name a task"),
        (plain, {"aliases": "older"}, "give a list of texts"),
        (lambda: None, {}, "'<lambda>' cannot name a task; give a name="),
        (plain, {"queue": ""}, "queue is ''; give a text that is not empty"),
        (plain, {"timeout": 0}, "timeout is 0; give a span longer than zero"),
        (plain, {"timeout": "soon"}, "timeout is 'soon'"),
        (plain, {"retry": 3}, "retry is 3; give a RetryPolicy"),
        (plain, {"max_crashes": -1}, "max_crashes is -1; give a whole number"),
        (plain, {"max_snoozes": True}, "max_snoozes is True; give a whole number"),
        (plain, {"executor": "rocket"}, "executor is 'rocket'"),
        (coroutine, {"executor": "thread"}, "executor is 'thread'"),
        (plain, {"qeue": "mail"}, "there is no option 'qeue'; did you mean 'queue'?"),
        (plain, {"max_retries": 3}, "what other queues call so is retry=RetryPolicy(max_retries="),
        (plain, {"xyz": 1}, "the options are name, queue, timeout, retry"),
        (generator, {}, "generator() yields"),
        (async_generator, {}, "async_generator() yields"),
        (late_context, {}, "late_context(): parameter 'ctx' is a Context; only the first"),
        (checked_context, {}, "checked_context(): the type of parameter 'ctx'"),
        (3, {}, "3 cannot be a task"),
    ],
)
def test_what_cannot_be_a_task_is_refused_where_it_is_declared(
    app: Packhorse, function: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        app.task(**options)(function)

    assert words in str(raised.value)
    assert app.registry.names == ()


def test_a_second_task_of_a_name_is_an_error_that_names_both_places(app: Packhorse) -> None:
    app.task(name="send")(plain)

    with pytest.raises(ConfigError) as raised:
        app.task(name="other", aliases=["send"])(late_plain)

    places = re.findall(r"test_task\.py:(\d+)", str(raised.value))
    assert places == [str(function.__code__.co_firstlineno) for function in (plain, late_plain)]
    assert app.registry.names == ("send",)


def late_plain() -> None: ...


def test_a_wrapped_function_keeps_its_own_parameters(app: Packhorse) -> None:
    def traced(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @app.task
    @traced
    def add(a: int, b: int) -> int:
        return a + b

    assert add.call(1, b=2).payload == b'{"a":1,"b":2}'


# ----------------------------------------------------------------------------------- calling


@pytest.fixture
def send(app: Packhorse) -> FunctionTask[..., str]:
    @app.task(queue="mail", timeout="60s", max_crashes=2)
    def send(to: str, times: int = 1) -> str:
        return to * times

    return send


def test_a_call_follows_its_task_where_nothing_else_is_said(send: FunctionTask[..., str]) -> None:
    job = stored(send.call("a"))

    assert (job.task, job.payload) == ("send", b'{"to":"a"}')
    assert (job.queue, job.timeout_us, job.priority) == ("mail", 60_000_000, Priority.NORMAL)
    assert (job.tenant, job.tags, job.delay_us, job.scheduled_us) == ("", (), 0, None)
    assert job.options is not None
    assert (job.options.retry, job.options.max_crashes) == (None, 2)


def test_every_option_reaches_the_job(send: FunctionTask[..., str]) -> None:
    chosen = send.using(
        priority="high",
        scheduled_at=WHEN,
        tenant="acme",
        tags=["x", "y"],
        queue="q2",
        timeout="5s",
        deadline=WHEN.astimezone(timezone(timedelta(hours=2))) + timedelta(seconds=1),
        retry=RetryPolicy(max_retries=1),
        trace_id="trace-1",
        upstream_request_id="request-1",
        created_by="ada",
        job_id="order-17",
    )

    job = stored(chosen.call("a"))

    assert (job.priority, job.tenant, job.tags, job.queue) == (1, "acme", ("x", "y"), "q2")
    assert (job.timeout_us, job.trace_id) == (5_000_000, "trace-1")
    assert job.scheduled_us is not None
    assert job.deadline_us is not None
    assert to_datetime(job.scheduled_us) == WHEN
    assert to_datetime(job.deadline_us) == WHEN + timedelta(seconds=1)
    assert job.options is not None
    assert job.options.retry is not None
    assert job.options.retry.max_retries == 1
    assert (job.id, job.created_by, job.upstream_request_id) == ("order-17", "ada", "request-1")


def test_options_add_up_the_later_winning_and_none_taking_back(
    send: FunctionTask[..., str],
) -> None:
    urgent = send.using(priority="critical", delay="30s", tags=["a"])

    job = stored(urgent.using(delay=None, tags=("b",)).call("a").using(priority=Priority.LOW))

    assert (job.priority, job.delay_us, job.tags) == (Priority.LOW, 0, ("b",))
    assert stored(urgent.call("a")).delay_us == 30_000_000
    assert stored(send.call("a")).priority == Priority.NORMAL


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"priority": "urgent"}, "give one of critical, high, normal, low, background"),
        ({"priority": 1}, "priority is 1; give one of critical"),
        ({"delay": -1}, "delay is -1; give a span from 0"),
        ({"delay": "1s", "scheduled_at": WHEN}, "delay and scheduled_at both say when"),
        ({"scheduled_at": WHEN, "deadline": WHEN}, "scheduled_at is not before deadline"),
        ({"scheduled_at": datetime(2026, 1, 1)}, "without a time zone"),  # noqa: DTZ001
        ({"deadline": datetime(2026, 1, 1)}, "without a time zone"),  # noqa: DTZ001
        ({"deadline": "tomorrow"}, "deadline is 'tomorrow'; give an aware datetime"),
        ({"queue": ""}, "queue is ''"),
        ({"tags": "urgent"}, "tags is 'urgent'; give a list of texts"),
        ({"tags": ["a", 1]}, "tags holds 1; give texts only"),
        ({"tenant": 5}, "tenant is 5; give a text"),
        ({"timeout": 0}, "timeout is 0; give a span longer than zero"),
        ({"retry": 3}, "retry is 3; give a RetryPolicy"),
        ({"trace_id": ""}, "trace_id is ''"),
        ({"job_id": ""}, "job_id is ''"),
        ({"job_id": "a\0b"}, "give a text without NUL"),
        ({"queue": "a\0b"}, "give a text without NUL"),
        ({"queue": "\ud800"}, "give a text without NUL and lone surrogates"),
        ({"tenant": "a\0"}, "give a text without NUL"),
        ({"tags": ["a\0"]}, "give a text without NUL"),
        ({"ordering_key": "a\0"}, "give a text without NUL"),
        ({"priorty": "high"}, "there is no option 'priorty'; did you mean 'priority'?"),
        ({"countdown": 10}, "what other queues call so is task.using(delay=...)"),
        ({"foo": 1}, "there is no option 'foo'; the options are priority, delay, tenant"),
    ],
)
def test_a_wrong_option_is_refused_in_the_caller(
    send: FunctionTask[..., str], options: Any, words: str
) -> None:
    for using in (send.using, send.call("a").using):
        with pytest.raises(ConfigError) as raised:
            using(**options)

        assert words in str(raised.value)
        assert "send." in str(raised.value)


def test_a_name_from_an_enum_is_what_it_stands_for(send: FunctionTask[..., str]) -> None:
    class Line(str, Enum):  # noqa: UP042 - as it is often written; its text is another then
        MAIL = "mail"

    job = stored(send.using(queue=Line.MAIL, tenant=Line.MAIL, tags=[Line.MAIL]).call("a"))

    assert (type(job.queue), type(job.tenant), type(job.tags[0])) == (str, str, str)
    assert (job.queue, job.tenant, job.tags) == ("mail", "mail", ("mail",))


@pytest.mark.req("S0-29", "S3-3")
def test_each_job_gets_an_id_and_a_trace_of_its_own(send: FunctionTask[..., str]) -> None:
    jobs = [stored(send.call("a")) for _ in range(50)]

    assert len({job.id for job in jobs}) == 50
    assert len({job.trace_id for job in jobs}) == 50
    assert all(re.fullmatch("[0-9a-f]{32}", job.trace_id) for job in jobs)


@pytest.mark.req("S0-29")
def test_a_plain_job_has_a_trace_of_its_own_however_it_is_submitted(app: Packhorse) -> None:
    @app.task
    def nothing() -> None: ...

    jobs = [nothing.enqueue(), *nothing.enqueue_many([nothing.call(), nothing.call()])]
    jobs += app.enqueue_many([nothing.call()])

    traces = [job.info().trace_id for job in jobs]
    assert len(set(traces)) == 4
    assert all(re.fullmatch("[0-9a-f]{32}", trace) for trace in traces)


# --------------------------------------------------------------------------------- submitting


@pytest.mark.req("S2-1")
@pytest.mark.parametrize(
    ("name", "here"),
    [
        *((name, "send.enqueue(...)") for name in ("delay", "send")),
        *((name, "send.using(...).enqueue(...)") for name in ("apply_async", "send_with_options")),
        *((name, "send.call(...)") for name in ("s", "si", "signature", "message")),
    ],
)
def test_a_verb_of_other_queues_is_translated(
    send: FunctionTask[..., str], name: str, here: str
) -> None:
    with pytest.raises(AttributeError, match=re.escape(f"has no {name}(...): it is {here} here")):
        getattr(send, name)

    with pytest.raises(AttributeError, match="'FunctionTask' object has no attribute 'sennd'"):
        send.sennd  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(send, name)


def test_enqueueing_returns_without_running_anything(app: Packhorse) -> None:
    @app.task
    def explode() -> None:
        raise AssertionError("a submit runs nothing")

    job = explode.enqueue()

    assert job.status() is JobStatus.QUEUED
    assert not job.deduplicated


async def test_async_code_submits_without_blocking(send: FunctionTask[..., str]) -> None:
    job = await send.using(delay="1h").aenqueue("a", times=2)

    assert await job.astatus() is JobStatus.PENDING


def test_many_calls_are_stored_together_with_a_handle_each(send: FunctionTask[..., str]) -> None:
    calls: list[Call[str] | Mapping[str, Any]]
    tags = iter(["x"])  # may be read once only
    calls = [
        send.call("a"),
        MappingProxyType({"to": "b", "times": 2}),
        send.call("c").using(queue="slow", tags=tags),
    ]

    jobs = send.using(tenant="acme", queue="mail").enqueue_many(calls)

    assert jobs[2].info().tags == ("x",)

    assert [job.info().tenant for job in jobs] == ["acme", "acme", "acme"]
    assert [job.info().queue for job in jobs] == ["mail", "mail", "slow"]
    assert send.enqueue_many([]) == []


async def test_many_calls_are_all_refused_when_one_is_wrong(
    app: Packhorse, send: FunctionTask[..., str]
) -> None:
    with pytest.raises(PayloadError, match="'times'"):
        await send.aenqueue_many([{"to": "a"}, {"to": "b", "times": "x"}])

    assert await app.adepth("mail") == 0
    assert len(await send.aenqueue_many([{"to": "a"}, {"to": "b"}])) == 2
    assert await app.adepth("mail") == 2


def test_a_call_of_another_task_is_refused(app: Packhorse, send: FunctionTask[..., str]) -> None:
    app.task(plain)

    with pytest.raises(UsageError, match=r"app\.enqueue_many\(\)"):
        send.enqueue_many([app.tasks["plain"].call()])
    with pytest.raises(UsageError, match="neither a call of send nor arguments by name"):
        send.enqueue_many(["a"])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="is not a call"):
        app.enqueue_many([{"to": "a"}])  # type: ignore[list-item]


def test_a_repeated_submit_of_one_id_is_the_same_job(send: FunctionTask[..., str]) -> None:
    once = send.using(job_id="order-17")

    first, second = once.enqueue("a"), once.enqueue("a")

    assert (first.id, first.deduplicated) == ("order-17", False)
    assert (second.id, second.deduplicated) == ("order-17", True)


def test_arguments_that_contain_themselves_are_refused_by_name(app: Packhorse) -> None:
    @app.task
    def take(items: list[Any]) -> None: ...

    endless: list[Any] = []
    endless.append(endless)

    for submit in (take.enqueue, take.call):
        with pytest.raises(PayloadError, match=r"take\(\): argument 'items' cannot be written"):
            submit(endless)


def test_arguments_of_any_depth_are_submitted_or_refused(app: Packhorse) -> None:
    @app.task
    def take(items: list[Any]) -> None: ...

    items: list[Any] = []
    for _ in range(sys.getrecursionlimit() + 100):
        items = [items]
        with contextlib.suppress(PayloadError):
            take.call(items)
