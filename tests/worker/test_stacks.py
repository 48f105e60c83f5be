# SPDX-License-Identifier: MIT
"""A worker is asked through the store what its handlers do, and tells places, not values."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from packhorse import Packhorse
from packhorse.cli.main import root
from packhorse.client.worker_signals import (
    HandlerStack,
    WorkerStacks,
    aask_stacks,
    read_stacks,
    stacks_id,
    stacks_put,
)
from packhorse.runtime.worker.processes.runner import ProcessRunner
from packhorse.runtime.worker.stacks import _FRAMES_MAX, _HANDLERS_MAX, StackAnswers, _outward
from packhorse.stores.memory import MemoryStore
from tests.servers.postgres import postgres_url
from tests.servers.redis import redis_url

SECRET = "hunter2-and-more"


def url_of(store: str, folder: Path) -> str:
    match store:
        case "postgres":
            return postgres_url()
        case "redis":
            return redis_url()
        case _:
            return "memory://" if store == "memory" else f"sqlite:///{folder}/jobs.db"


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres", "redis"])
async def test_running_threads_and_coroutines_are_told_on_every_store(
    store: str, tmp_path: Path
) -> None:
    app, may_end, awaited = Packhorse(url_of(store, tmp_path)), threading.Event(), asyncio.Event()
    both = threading.Barrier(3, timeout=10)

    def where_a_thread_waits(password: str) -> None:
        both.wait()
        assert may_end.wait(10), password

    async def where_a_coroutine_waits() -> None:
        arrived = asyncio.create_task(asyncio.to_thread(both.wait))
        await awaited.wait()
        await arrived

    @app.task
    def threaded(password: str) -> None:
        where_a_thread_waits(password)

    @app.task
    async def looped() -> None:
        await where_a_coroutine_waits()

    await threaded.aenqueue(SECRET)
    await looped.aenqueue()
    working = asyncio.create_task(app.arun(handle_signals=False))

    await asyncio.to_thread(both.wait)
    [worker] = await app.insights.aworkers()

    found = await aask_stacks(app.store, worker.id, by="test", timeout_s=5)

    may_end.set()
    awaited.set()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    await app.aclose()
    told = {one.task: one for one in found.stacks}
    assert {name: one.kind for name, one in told.items()} == {
        "threaded": "thread",
        "looped": "coroutine",
    }
    assert "in where_a_thread_waits" in told["threaded"].stack
    assert "in where_a_coroutine_waits" in told["looped"].stack
    assert SECRET not in str(found)
    assert "/packhorse/runtime/" not in str(found)  # where the worker itself is does not help


async def test_a_worker_whose_loop_is_blocked_answers_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.runtime.worker.heartbeat._BLOCKED_S", 0.1)
    monkeypatch.setattr("packhorse.runtime.worker.heartbeat._LOOK_S", 0.05)
    app = Packhorse(f"sqlite:///{tmp_path}/jobs.db")
    begun, may_end = threading.Event(), threading.Event()

    @app.task
    async def blocks() -> None:
        begun.set()
        may_end.wait(10)

    await blocks.aenqueue()
    thread = threading.Thread(target=lambda: app.run(burst=True, handle_signals=False))
    thread.start()

    await asyncio.to_thread(begun.wait, 10)
    [worker] = await app.insights.aworkers()

    command = ["workers", "stacks", worker.id[-8:], "--url", f"sqlite:///{tmp_path}/jobs.db"]
    shown = await asyncio.to_thread(CliRunner().invoke, root, command)
    silent = await asyncio.to_thread(CliRunner().invoke, root, [*command[:2], "none", *command[3:]])

    may_end.set()
    await asyncio.to_thread(thread.join)
    assert shown.exit_code == 0
    assert "coroutine, for" in shown.output
    assert "in blocks" in shown.output
    assert (silent.exit_code, "no live worker is none" in silent.output) == (7, True)


async def test_where_handlers_in_processes_are_is_told_once_each_has_said_it() -> None:
    asked: list[Callable[[], None]] = []
    runner = ProcessRunner.__new__(ProcessRunner)  # of no worker
    process = cast("Any", SimpleNamespace(ask_where=asked.append))
    runner._running = {cast("Any", name): process for name in ("one", "two")}
    told: list[bool] = []

    runner.ask_where(lambda: told.append(True))

    one, two = asked
    one()
    one()
    assert told == []
    two()
    assert told == [True]


def test_of_a_deep_stack_so_many_of_the_innermost_frames_are_told() -> None:
    def frames(depth: int) -> list[FrameType]:
        return frames(depth - 1) if depth else _outward(sys._getframe())

    found = frames(2 * _FRAMES_MAX)

    assert {each.f_code.co_name for each in found} == {"frames"}
    assert len(found) == _FRAMES_MAX


def test_of_very_many_handlers_those_that_run_longest_are_told_and_the_others_counted() -> None:
    store = MemoryStore()
    store.run(store.records.change([stacks_put(WorkerStacks(worker="w", by="me"))]))
    running = [
        HandlerStack(job_id=f"{number}", task="t", seconds=number, kind="thread", stack="")
        for number in range(_HANDLERS_MAX + 3)
    ]
    runtime = SimpleNamespace(env=SimpleNamespace(store=store), worker="w")
    answers: Any = SimpleNamespace(_runtime=runtime, _stacks=lambda: running)

    StackAnswers._answer(answers)

    told = read_stacks(store.run(store.records.record(stacks_id("w"))))
    assert told is not None
    assert (told.answered, told.more, len(told.stacks)) == (True, 3, _HANDLERS_MAX)
    assert min(each.seconds for each in told.stacks) == 3
