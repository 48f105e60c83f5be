# SPDX-License-Identifier: MIT
"""A process that runs handlers declared with `executor="process"`, one at a time.

    setup ──import the app, enter its lifespan hooks──▶ ready ──run──▶ done ──run──▶ done ── ...

It ends when its worker does. Whatever a handler does here, only this process can suffer.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import importlib
import inspect
import logging
import os
import resource
import runpy
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any, Final

from packhorse.clock import SECOND_US
from packhorse.context import Context
from packhorse.errors import ConfigError
from packhorse.job import Job, JobStatus, Progress
from packhorse.supervisor.link import die_with_parent
from packhorse.worker.attempt import Attempt, Ending, Stage
from packhorse.worker.executor import Executor
from packhorse.worker.failures import described
from packhorse.worker.lifespan import entered
from packhorse.worker.plans import PlanBook
from packhorse.worker.process_messages import (
    Broken,
    Cancel,
    LeaseGone,
    Logged,
    Noted,
    Ready,
    Run,
    Setup,
    done,
    encode,
    read_to_process,
)
from packhorse.worker.wear import is_alarming, memory_mib

__all__ = ["VARIABLE", "main", "process_command"]

#: Tells the process its descriptors; set while it lives, so that nothing starts a worker in it.
VARIABLE: Final = "PACKHORSE_PROCESS"
_CHUNK: Final = 65_536
_MAIN: Final = "__mp_main__"  # as multiprocessing calls it: scripts know not to start anything
_PLAIN_FIELDS: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "taskName"}


def process_command() -> list[str]:
    """How such a process is started."""
    # Not -m: it would look for the module before `sys.path` is as the worker has it.
    return [sys.executable, "-c", f"from {__name__} import main; main()"]


def main() -> None:
    """Serve the worker that started this process, until it goes."""
    channel, faults = map(int, os.environ[VARIABLE].split(","))
    for descriptor in (channel, faults):
        os.set_inheritable(descriptor, False)
    die_with_parent()
    faulthandler.enable(file=faults)
    # The worker decides when this ends: a signal to the whole group must not.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=channel) as connection:
        _Process(connection).serve()


class _Process:
    """One conversation with a worker."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._inbox: SimpleQueue[Setup | Run | None] = SimpleQueue()  # at most one job waits in it
        self._attempt: Attempt | None = None
        self._importing = True  # until then there is nothing to leave in order
        self.lease_gone = False

    def serve(self) -> None:
        threading.Thread(target=self._listen, name="packhorse-worker", daemon=True).start()
        setup = self._inbox.get()
        if not isinstance(setup, Setup):
            return
        logging.getLogger().addHandler(_ToWorker(self))
        logging.getLogger().setLevel(setup.log_level)
        with asyncio.Runner() as runner:
            stack = contextlib.AsyncExitStack()
            try:
                app = self._import(setup)
                hooks = entered(getattr(app, "lifespans", ()), app)
                state = runner.run(stack.enter_async_context(hooks))
            except BaseException as error:  # noqa: BLE001 - user code; the worker is told
                told = described(error)
                hopeless = isinstance(error, ConfigError)
                self.send(Broken(f"{told.type}: {told.message}", told.stack, hopeless))
                return
            _limit(setup)
            self.send(Ready())
            try:
                self._run_jobs(app, setup, runner, state)
            finally:
                runner.run(stack.aclose())

    def send(self, message: Any) -> None:
        with self._sending, contextlib.suppress(OSError):  # the worker has gone: so does this
            self._connection.sendall(encode(message))

    def note_progress(self, progress: Progress) -> None:
        self.send(Noted(progress))

    def _import(self, setup: Setup) -> Any:
        try:
            return _imported(setup)
        finally:
            self._importing = False

    def _run_jobs(
        self, app: Any, setup: Setup, runner: asyncio.Runner, state: Mapping[str, Any]
    ) -> None:
        plans = PlanBook(app.registry, {}, SECOND_US)

        def context(attempt: Attempt) -> Context:
            return Context(attempt.job, _Link(self, app, attempt), worker=setup.worker, state=state)

        executor = Executor(context)
        while isinstance(message := self._inbox.get(), Run):
            attempt = Attempt(message.job, plans.find(message.job), 0, 0)
            attempt.stage = Stage.RUNNING
            # One that lost its lease would not have begun.
            self.lease_gone, self._attempt = False, attempt
            if setup.cpu_s is not None:
                _limit_cpu(setup.cpu_s)
            if inspect.iscoroutinefunction(attempt.plan.function):
                outcome = runner.run(executor.execute(attempt))
            else:
                outcome = executor.execute_here(attempt)
            self._attempt = None
            self.send(done(outcome, memory_mib(), rebuild=is_alarming(outcome)))

    def _listen(self) -> None:
        heard = b""
        with contextlib.suppress(OSError):
            while chunk := self._connection.recv(_CHUNK):
                *lines, heard = (heard + chunk).split(b"\n")
                for line in lines:
                    self._hear(read_to_process(line))
        # The worker has let go of this process, or has gone. One that runs a handler, or
        # has not come as far as its hooks, ends at once.
        if self._attempt is not None or self._importing:
            os.kill(os.getpid(), signal.SIGKILL)
        self._inbox.put(None)

    def _hear(self, message: Setup | Run | Cancel | LeaseGone) -> None:
        match message:
            case Setup() | Run():
                self._inbox.put(message)
            case Cancel():
                attempt = self._attempt
                if attempt is not None:
                    attempt.ending = Ending.CANCEL  # seen by a context that is just being made
                    if attempt.context is not None:
                        attempt.context.request_cancel()
            case LeaseGone(gone):
                self.lease_gone = gone


class _Link:
    """What a context asks of the worker, by way of the pipe."""

    __slots__ = ("_app", "_job", "_process")

    def __init__(self, process: _Process, app: Any, attempt: Attempt) -> None:
        self._process = process
        self._app = app
        self._job: Job = attempt.job

    def note_progress(self, progress: Progress) -> None:
        self._process.note_progress(progress)

    def lease_lost(self) -> bool:
        return self._process.lease_gone

    def still_mine(self) -> bool:
        store = self._app.store
        return self._is_mine(store.run(store.inspection.job(self._job.id)))

    async def astill_mine(self) -> bool:
        store = self._app.store
        return self._is_mine(await store.arun(store.inspection.job(self._job.id)))

    def _is_mine(self, record: Any) -> bool:
        if record is None or record.status is not JobStatus.PROCESSING:
            return False
        return bool(record.fence == self._job.fence and not record.cancel_requested)


class _ToWorker(logging.Handler):
    """Hands log lines to the worker, whose handlers write them."""

    def __init__(self, process: _Process) -> None:
        super().__init__()
        self._process = process

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # a line that cannot be sent is no reason to fail
            extra = {
                name: value if isinstance(value, (int, float, str, bool)) else str(value)
                for name, value in record.__dict__.items()
                if name not in _PLAIN_FIELDS
            }
            trace = record.exc_info and logging.Formatter().formatException(record.exc_info)
            line = Logged(record.name, record.levelno, record.getMessage(), extra, trace or "")
            self._process.send(line)


def _imported(setup: Setup) -> Any:
    """The app, imported as the worker has it."""
    sys.path[:] = setup.path
    if setup.main is not None:
        main_module = type(sys)(_MAIN)
        content = runpy.run_path(setup.main, run_name=_MAIN)
        main_module.__dict__.update(content)
        sys.modules["__main__"] = sys.modules[_MAIN] = main_module
    module_name, _, attribute = setup.app.partition(":")
    found: Any = importlib.import_module(module_name)
    for name in attribute.split("."):
        found = getattr(found, name)
    return found if hasattr(found, "registry") else found()


def _limit(setup: Setup) -> None:
    """Bound the memory this process may ask for, from now on."""
    if setup.memory_bytes is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (setup.memory_bytes, hard))


def _limit_cpu(seconds: int) -> None:
    """Bound the CPU time of the job that begins; the kernel counts it for the whole process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime) + 1 + seconds
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
