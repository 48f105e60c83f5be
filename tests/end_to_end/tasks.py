# SPDX-License-Identifier: MIT
"""The app of the worker processes in these tests: handlers that write down what they do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final, NoReturn

from faults.records import Recorder
from packhorse import Context, Contract, NeedsHuman, Packhorse, RetryPolicy
from packhorse.events import JobCompleted, JobStale
from packhorse.stores.postgres import transactions as postgres_transactions

record = Recorder()

#: How long a handler that waits for its test to let it go does so at most.
GATE_S: Final = 60.0
GATE_LOOK_S: Final = 0.01
_THINKER: Final = Contract(worker_id="thinker", max_tokens=100)


def create_app(url: str | None = None) -> Packhorse:
    """The app of a worker process, or of a test that submits."""
    app = Packhorse(url)
    for handler in (quick, nap, book, doze, stay, block_loop, wait_for_file):
        app.task(handler)
    app.task(max_crashes=1)(take_down)
    app.task(pay)
    app.task(transact)
    app.task(name="pay_in_process", executor="process")(pay)
    often = RetryPolicy(max_retries=50, backoff="fixed", initial_delay=0.05)
    app.task(pack)
    app.task(retry=often)(guarded)
    app.task(name="guarded_in_process", executor="process", retry=often)(guarded)
    app.task(contract=_THINKER)(think)
    app.task(name="think_in_process", contract=_THINKER, executor="process")(think)
    app.task(retry=RetryPolicy(max_retries=0))(fail)
    app.on(JobCompleted)(_note)
    app.on(JobStale)(_note)
    return app


def _note(event: JobCompleted | JobStale) -> None:
    """What the store answered this worker, written down with the handlers' own lines."""
    record.write_line(event.status, event.job_id, event.attempt)


async def quick(ctx: Context, number: int) -> int:
    """Starts and ends."""
    record.write("start", ctx)
    record.write("end", ctx)
    return number


async def nap(ctx: Context, seconds: float) -> dict[str, int]:
    """A coroutine that takes a while."""
    record.write("start", ctx)
    await asyncio.sleep(seconds)
    record.write("end", ctx)
    return {"fence": ctx.job.fence, "pid": os.getpid()}


def book(ctx: Context, ledger: str, seconds: float) -> dict[str, int]:
    """An effect that bears being run twice: the job's id is its key outside."""
    record.write("start", ctx)
    time.sleep(seconds)
    with contextlib.closing(sqlite3.connect(ledger, isolation_level=None)) as connection:
        connection.execute("create table if not exists entries (job_id text primary key)")
        added = connection.execute("insert or ignore into entries values (?)", (ctx.job.id,))
        record.write("end", ctx, note="booked" if added.rowcount else "known")
    return {"fence": ctx.job.fence, "pid": os.getpid()}


def doze(ctx: Context, seconds: float) -> dict[str, int]:
    """A thread that takes a while, and does not listen."""
    record.write("start", ctx)
    time.sleep(seconds)
    record.write("end", ctx)
    return {"fence": ctx.job.fence, "pid": os.getpid()}


def stay(ctx: Context) -> None:
    """A thread that hears it is not wanted any more, and stays."""
    record.write("start", ctx)
    ctx.wait_cancelled(GATE_S)
    record.write("told", ctx)
    time.sleep(GATE_S)


async def block_loop(ctx: Context, seconds: float) -> dict[str, int]:
    """A mistake people make: blocking work in a coroutine. Nothing else of the loop runs."""
    record.write("start", ctx)
    time.sleep(seconds)
    record.write("end", ctx)
    return {"fence": ctx.job.fence, "pid": os.getpid()}


async def wait_for_file(ctx: Context, path: str) -> dict[str, int]:
    """Runs until the test makes the file, for all processes or for this one."""
    record.write("start", ctx)
    gates = (Path(path), Path(f"{path}.{os.getpid()}"))
    try:
        async with asyncio.timeout(GATE_S):
            while not any(gate.exists() for gate in gates):
                await asyncio.sleep(GATE_LOOK_S)
    except asyncio.CancelledError:
        record.write("cancelled", ctx)
        raise
    record.write("end", ctx)
    return {"fence": ctx.job.fence, "pid": os.getpid()}


def take_down(ctx: Context) -> None:
    """Kills its worker, every time."""
    record.write("start", ctx)
    os._exit(86)


def pay(ctx: Context) -> list[str]:
    """Three steps; its process is killed after the second, and in the middle of the third."""

    def do(what: str) -> str:
        record.write("step", ctx, note=what)
        return what

    done = [ctx.step("reserve", do, "reserve"), ctx.step("charge", do, "charge")]
    if ctx.job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)

    def mail() -> str:
        do("mail")
        if ctx.job.attempt == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return "mail"

    return [*done, ctx.step("mail", mail)]


def pack(ctx: Context, number: int) -> int:
    """An item of a batch; its process is killed in the sixth, once the others are kept."""

    def kept(store: Any) -> Generator[Any, Any, bool]:
        found = yield store.attachments.attachments(ctx.job.id)
        return found is not None and b"[5,1" in b"".join(found.values.values())

    record.write("packed", ctx, note=str(number))
    if number == 6 and ctx.job.attempt == 1:
        while not ctx.host.ask(kept):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def guarded(ctx: Context, broken: str) -> None:
    """Calls another system, which is down while a file is there, through a breaker."""
    with ctx.breaker("bank", failures=1, window="1m", open_for="0.2s"):
        record.write("begin", ctx)
        try:
            time.sleep(0.02)  # the call
            if Path(broken).exists():
                raise OSError("down")
            record.write("answered", ctx)
        finally:
            record.write("end", ctx)


def think(ctx: Context) -> str:
    """Spends, and its process is killed; asks, then spends again until nothing is left."""
    record.write("start", ctx, note=str(ctx.budget.spent))
    ctx.spend(tokens=40)
    if ctx.job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if ctx.approval is None:
        raise NeedsHuman("may I go on?")
    return ctx.approval.by


async def fail(ctx: Context) -> None:
    """Fails for good."""
    record.write("start", ctx)
    raise ValueError("as asked")


def transact(ctx: Context, table: str, place: str) -> str:
    """Write a row and complete the job together; its process is killed there the first time."""
    doomed = place if ctx.job.attempt == 1 else ""
    with ctx.transaction() as tx:
        tx.connection.execute(f"insert into {table} values ('{ctx.job.id}')")
        _die_at("row", doomed)
        tx.complete(place)
        _die_at("completion", doomed)
        if doomed == "commit":  # with the completion written, and COMMIT not sent
            postgres_transactions._LastSteps._commit = _die  # type: ignore[assignment]
            tx.connection.execute = _DyingAtCommit(tx.connection.execute)
    _die_at("after", doomed)
    return ""


class _DyingAtCommit:
    """Stands for `execute` of SQLite's connection."""

    def __init__(self, execute: Callable[..., Any]) -> None:
        self._execute = execute

    def __call__(self, statement: str, *parameters: Any) -> Any:
        if statement == "commit":
            _die()
        return self._execute(statement, *parameters)


def _die_at(place: str, doomed: str) -> None:
    if place == doomed:
        _die()


def _die(*_: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
