# SPDX-License-Identifier: MIT
"""Warm processes for handlers that must be killable, and how each of them is doing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from packhorse.job import AttemptError, Job
from packhorse.outcome import Crashed, Failed, Outcome
from packhorse.supervisor.process import Death
from packhorse.supervisor.stacks import readable_stacks
from packhorse.worker.process_child import VARIABLE, process_command
from packhorse.worker.process_messages import (
    Broken,
    Cancel,
    Done,
    LeaseGone,
    Logged,
    Noted,
    Ready,
    Run,
    Setup,
    encode,
    outcome_of,
    read_from_process,
)

__all__ = ["BrokenApp", "PoolCalls", "PoolProcess", "ProcessLimits", "ProcessPool"]

_LOG: Final = logging.getLogger("packhorse.worker")
#: The longest line: a job's payload or result.
_LINE_BYTES: Final = 64 * 1024 * 1024
_FAULT_BYTES: Final = 200_000
_STACKS_MAX: Final = 8_000
_MESSAGE_MAX: Final = 2_000
_MIB: Final = 1024 * 1024
_RSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024
#: How long a process may take to end by itself when it is no longer wanted.
_PARTING_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """How much one process may do before another one takes its place."""

    slots: int
    max_jobs: int
    max_failures: int  #: in a row
    recycle_mib: float | None


@dataclass(frozen=True, slots=True)
class PoolCalls:
    """Whom the pool tells what."""

    freed: Callable[[], None]  #: a process has become free
    hopeless: Callable[[str], None]  #: the app will never load in one, and why


class ProcessPool:
    """At most `slots` processes; those that have nothing to do stay warm."""

    def __init__(self, setup: Setup, limits: ProcessLimits, calls: PoolCalls) -> None:
        self.limits = limits
        self._calls = calls
        self.started = 0  #: processes since the worker began
        self._setup = setup
        self._idle: list[PoolProcess] = []
        self._all: set[PoolProcess] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()  # at most one per slot of the worker
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def warm(self) -> None:
        """Start one process before it is needed."""
        self._keep(self._warm())

    async def acquire(self, wait_s: float | None = None) -> PoolProcess:
        """A process that is ready, once there is one.

        `TimeoutError` if none becomes free in time, `BrokenApp` if the app does not load.
        """
        async with asyncio.timeout(wait_s):
            while not self._idle and len(self._all) >= self.limits.slots:
                turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting.append(turn)
                await turn
        if self._idle:
            return self._idle.pop()  # the one used last is the warmest
        return await self._start()

    def release(self, process: PoolProcess) -> None:
        """Give a process back; one that has done enough, or is not well, is replaced."""
        if process.usable and process.within(self.limits) and not self._closed:
            self._idle.append(process)
        else:
            self._discard(process)
        self._next()

    def tell_lease(self, *, gone: bool) -> None:
        """Tell every process whether the worker's lease may be gone."""
        for process in self._all:
            process.tell(LeaseGone(gone))

    async def close(self) -> None:
        """End every process, and wait for that."""
        self._closed = True
        for process in list(self._all):
            self._discard(process)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * _PARTING_S):
                while self._tasks:  # one that was starting is discarded once more
                    await asyncio.wait(self._tasks)

    async def _warm(self) -> None:
        if self._closed:
            return
        try:
            self.release(await self._start())
        except BrokenApp as error:
            if not self._closed:  # else it was let go of, and that is no fault of the app
                _LOG.error("the app cannot be loaded in a process of its own: %s", error)

    async def _start(self) -> PoolProcess:
        process = PoolProcess()
        self._all.add(process)
        self.started += 1
        try:
            await process.open(self._setup)
        except BaseException as error:
            if isinstance(error, BrokenApp) and error.hopeless:
                self._calls.hopeless(str(error))
            self._discard(process)
            self._next()
            raise
        return process

    def _discard(self, process: PoolProcess) -> None:
        self._all.discard(process)
        if process in self._idle:
            self._idle.remove(process)
        self._keep(process.close())

    def _keep(self, step: Coroutine[Any, Any, None]) -> None:
        """The event loop forgets tasks that nobody holds."""
        task = asyncio.ensure_future(step)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _next(self) -> None:
        """Let the next one that waits look."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break
        self._calls.freed()


class BrokenApp(Exception):
    """A process could not import the app, or enter its lifespan hooks."""

    def __init__(self, message: str, stack: str | None = None, *, hopeless: bool = False) -> None:
        super().__init__(message)
        self.stack = stack
        self.hopeless = hopeless


class PoolProcess:
    """One process, and the conversation with it."""

    def __init__(self) -> None:
        self.jobs = 0
        self.failures = 0  #: in a row
        self.memory_mib = 0.0
        self.usable = False
        self.pid = 0
        self._last_log = ""
        self._busy = False
        self._unwanted = False  # it is to go, also if it is not ready yet
        self._ending: asyncio.Task[Death] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._faults = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process

    async def open(self, setup: Setup) -> None:
        """Start it, and wait until it has imported the app."""
        await self._connect()
        self.tell(setup)
        answer = await self._hear()
        if isinstance(answer, Broken):
            raise BrokenApp(answer.message, answer.stack, hopeless=answer.hopeless)
        if self._unwanted:
            raise BrokenApp("the worker let go of the process before it was ready")
        if not isinstance(answer, Ready):
            death = await self._reaped()
            raise BrokenApp(f"the process ended while it imported the app: {death.evidence}")
        self.usable = True

    async def _connect(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = self._started(theirs)
            self.pid = self._process.pid
            self._reader, self._writer = await asyncio.open_connection(sock=ours, limit=_LINE_BYTES)
        except BaseException:
            ours.close()
            raise
        if self._unwanted:
            self._writer.close()

    def _started(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        descriptors = (theirs.fileno(), self._faults.fileno())
        return subprocess.Popen(  # noqa: S603 - takes a millisecond
            process_command(),
            pass_fds=descriptors,
            env={**os.environ, VARIABLE: ",".join(map(str, descriptors))},
            start_new_session=True,
            stdin=subprocess.DEVNULL,
        )

    def within(self, limits: ProcessLimits) -> bool:
        """Whether it may be used again."""
        if self.jobs >= limits.max_jobs or self.failures >= limits.max_failures:
            return False
        return limits.recycle_mib is None or self.memory_mib <= limits.recycle_mib

    async def run(self, job: Job, progress: Callable[[Noted], None]) -> Outcome:
        """Run one job; a process that dies meanwhile is a crash, pinned on this job."""
        self.jobs += 1
        self._busy, self.usable = True, False  # until it has answered
        self.tell(Run(job))
        while True:
            message = await self._hear()
            match message:
                case Noted():
                    progress(message)
                case Done():
                    return self._answered(message)
                case _:
                    return _crashed(await self._reaped(), self.pid)

    def cancel(self) -> None:
        """Tell the handler that its work is not wanted any more."""
        self.tell(Cancel())

    def kill(self) -> None:
        """End it now, whatever it does."""
        self.usable = False
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def tell(self, message: Setup | Run | Cancel | LeaseGone) -> None:
        """Say something; to one that is gone it is said in vain."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode(message))

    async def close(self) -> None:
        """Let it leave its lifespan hooks and go; kill it if it does not. May be called again."""
        if self._busy:
            self.kill()
        self.usable, self._unwanted = False, True
        if self._writer is not None:
            self._writer.close()
        if self._process is not None:
            try:
                async with asyncio.timeout(_PARTING_S):
                    await self._ended()
            except TimeoutError:
                await self._reaped()
        self._faults.close()

    def _answered(self, message: Done) -> Outcome:
        outcome = outcome_of(message)
        self.memory_mib = message.memory_mib
        self.failures = self.failures + 1 if isinstance(outcome, Failed) else 0
        self._busy, self.usable = False, not message.rebuild
        return outcome

    async def _hear(self) -> Ready | Broken | Done | Noted | None:
        """The next message that is not for the log; None when it has gone."""
        while self._reader is not None:
            try:
                line = await self._reader.readuntil(b"\n")
            except (asyncio.IncompleteReadError, ConnectionError, ValueError):
                return None
            message = read_from_process(line[:-1])
            if not isinstance(message, Logged):
                return message
            self._last_log = message.message
            _log(message)
        return None

    async def _reaped(self) -> Death:
        """How it ended; it has closed its end, so that it is over or will be at once."""
        self.kill()  # changes nothing for one that is dying already
        return await self._ended()

    async def _ended(self) -> Death:
        """How it ended, once it has; whoever asks, it is waited for once: the kernel tells once."""
        if self._ending is None:
            self._ending = asyncio.create_task(asyncio.to_thread(self._wait))
        return await asyncio.shield(self._ending)

    def _wait(self) -> Death:
        unknown = Death(exit_code=None, signal=None, memory_mib=0.0)
        if self._process is None:
            return unknown
        try:
            _, status, usage = os.wait4(self.pid, 0)
        except ChildProcessError:  # a handler in this process has reaped what is not its own
            self._process.returncode = 0
            return unknown
        code = self._process.returncode = os.waitstatus_to_exitcode(status)
        self._faults.seek(0)
        text = self._faults.read(_FAULT_BYTES).decode("utf-8", "replace").strip()
        return Death(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            memory_mib=usage.ru_maxrss * _RSS_UNIT / _MIB,
            last_log=self._last_log,
            stacks=readable_stacks(text)[-_STACKS_MAX:],
        )


def _log(line: Logged) -> None:
    """Log what a process has logged, as if it had been here."""
    logger = logging.getLogger(line.logger)
    if logger.isEnabledFor(line.level):
        about = (line.logger, line.level, "", 0, "%s", (line.message,), None)
        record = logger.makeRecord(*about, extra=line.fields)
        record.exc_text = line.exception or None
        logger.handle(record)


def _crashed(death: Death, pid: int) -> Crashed:
    message = f"its process {pid} ended while it ran: {death.evidence}"
    return Crashed(
        AttemptError(
            type="WorkerLost",
            message=message[:_MESSAGE_MAX],
            code="WORKER_LOST",
            reason="worker_lost",
            stack=death.stacks or None,
        )
    )
