# SPDX-License-Identifier: MIT
"""Warm processes for handlers that must be killable."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import IO, Any, Final

from packhorse.core.clock import SystemClock
from packhorse.core.job import Job
from packhorse.core.job_logs import RunningJob
from packhorse.core.outcome import Crashed, Failed, Outcome
from packhorse.runtime.supervisor.child_process import Death
from packhorse.runtime.supervisor.messages import encode
from packhorse.runtime.supervisor.posix import descendants, kill_all
from packhorse.runtime.worker.processes.child import VARIABLE, process_command
from packhorse.runtime.worker.processes.messages import (
    READ_FROM,
    Broken,
    Cancel,
    Done,
    FromProcess,
    LeaseGone,
    Logged,
    Noted,
    Ready,
    Run,
    Setup,
    ToProcess,
    Where,
    Whereabouts,
    outcome_of,
)

_LOG: Final = logging.getLogger("packhorse.worker")
#: The longest line: a job's payload or result.
_LINE_BYTES: Final = 64 * 1024 * 1024
#: How long a discarded process may take to end by itself.
_PARTING_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """How many processes there are, and how much one may do before it is replaced."""

    slots: int
    max_jobs: int
    max_failures: int  #: in a row
    recycle_mib: float | None


class ProcessPool:
    """At most `slots` processes; idle ones stay warm."""

    def __init__(
        self,
        setup: Setup,
        limits: ProcessLimits,
        *,
        hopeless: Callable[[str], None],
    ) -> None:
        self.limits = limits
        self._hopeless = hopeless  # the app will never load in a process, and why
        self.started = 0  #: processes since the worker began
        self._setup = setup
        self._idle: list[PoolProcess] = []
        self._all: set[PoolProcess] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()  # at most one per job held
        self._patience: set[asyncio.Timeout] = set()  # of callers that wait, and not for ever
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def warm(self) -> None:
        """Start one process before it is needed."""
        self._keep(self._warm())

    async def acquire(self, wait_s: float | None = None) -> PoolProcess:
        """Wait for a process that is ready.

        `TimeoutError` if none becomes free in time, `BrokenApp` if the app does not load, another
        `OSError` if the system starts none.
        """
        async with self._patient(wait_s):
            await self._room()
        if self._idle:
            return self._idle.pop()  # the one used last is the warmest
        return await self._start()

    async def rest(self, wait_s: float) -> None:
        """Wait so long, or until `turn_away`."""
        with contextlib.suppress(TimeoutError):
            async with self._patient(wait_s):
                await asyncio.get_running_loop().create_future()

    @contextlib.asynccontextmanager
    async def _patient(self, wait_s: float | None) -> AsyncIterator[None]:
        async with asyncio.timeout(wait_s) as patience:
            if wait_s is not None:
                self._patience.add(patience)
            try:
                yield
            finally:
                self._patience.discard(patience)

    def release(self, process: PoolProcess) -> None:
        """Return a process; discard one that has done enough or is not usable."""
        if process.usable and process.within(self.limits) and not self._closed:
            self._idle.append(process)
        else:
            self._discard(process)
        self._next()

    async def _room(self) -> None:
        """Wait until there is an idle process, or room for another one."""
        wait_at = self._waiting.append
        while not self._idle and len(self._all) >= self.limits.slots:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            wait_at(turn)
            await turn
            wait_at = self._waiting.appendleft  # a new caller was faster: stay the first

    def turn_away(self) -> None:
        """End the waits of `acquire` that have a limit, as if it were reached."""
        now = asyncio.get_running_loop().time()
        for patience in self._patience:
            patience.reschedule(now)

    def tell_lease(self, *, gone: bool) -> None:
        """Tell every process whether the worker's lease may be gone."""
        for process in self._all:
            process.tell(LeaseGone(gone))

    async def close(self) -> None:
        """End every process, and wait for it."""
        self._closed = True
        for process in list(self._all):
            self._discard(process)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * _PARTING_S):
                while self._tasks:  # a starting process is discarded once it has started
                    await asyncio.wait(self._tasks)

    async def _warm(self) -> None:
        if self._closed:
            return
        try:
            self.release(await self._start())
        except OSError:
            pass  # the first job starts one
        except BrokenApp as error:
            if not self._closed:  # else it was discarded, which is no fault of the app
                _LOG.error("the app cannot be loaded in a process of its own: %s", error)

    async def _start(self) -> PoolProcess:
        process = PoolProcess()
        self._all.add(process)
        self.started += 1
        try:
            await process.open(self._setup)
        except BaseException as error:
            if isinstance(error, BrokenApp) and error.hopeless:
                self._hopeless(str(error))
            if isinstance(error, OSError):
                _LOG.warning("no process can be started for now: %s", error)
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
        """Run a coroutine and hold its task: the event loop keeps weak references only."""
        task = asyncio.ensure_future(step)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _next(self) -> None:
        """Wake the next waiter."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break


class BrokenApp(Exception):
    """A process could not import the app, or enter its lifespan hooks."""

    def __init__(self, message: str, stack: str | None = None, *, hopeless: bool = False) -> None:
        super().__init__(message)
        self.stack = stack
        self.hopeless = hopeless


class PoolProcess:
    """One process, and the connection to it."""

    def __init__(self) -> None:
        self.jobs = 0
        self.failures = 0  #: in a row
        self.strays = 0  #: messages about jobs that it does not run, which are ignored
        self.memory_mib = 0.0
        self.usable = False
        self.pid = 0
        self.where = ""  #: where its handler was when that was last asked
        self._told_where: Callable[[], None] = lambda: None
        self._last_log = ""
        self._busy = False
        self._unwanted = False  # it is to end, even if it is not ready yet
        self._ending: asyncio.Task[Death] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._faults: IO[bytes] | None = None

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
        self._faults = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = self._started(theirs, self._faults)
            self.pid = self._process.pid
            self._reader, self._writer = await asyncio.open_connection(sock=ours, limit=_LINE_BYTES)
        except BaseException:
            ours.close()
            raise
        if self._unwanted:
            self._writer.close()

    def _started(self, theirs: socket.socket, faults: IO[bytes]) -> subprocess.Popen[bytes]:
        descriptors = (theirs.fileno(), faults.fileno())
        return subprocess.Popen(  # noqa: S603 - takes a millisecond
            process_command(),
            pass_fds=descriptors,
            env={**os.environ, VARIABLE: ",".join(map(str, descriptors))},
            process_group=0,  # in the worker's session, so that it and its children end with it
            stdin=subprocess.DEVNULL,
        )

    def within(self, limits: ProcessLimits) -> bool:
        """Tell whether it may be used again."""
        if self.jobs >= limits.max_jobs or self.failures >= limits.max_failures:
            return False
        return limits.recycle_mib is None or self.memory_mib <= limits.recycle_mib

    async def run(
        self,
        running: RunningJob,
        offsets_us: tuple[int, int],
        progress: Callable[[Noted], None],
        *,
        start_by: float | None = None,
        carrier: dict[str, str] | None = None,
    ) -> Outcome:
        """Run one job. If the process dies meanwhile, the outcome is a crash."""
        job = running.job
        self.jobs += 1
        self._busy, self.usable = True, False  # until it has answered
        self.where = ""
        self.tell(Run(job, offsets_us, start_by, carrier))
        while True:
            message = await self._hear(running)
            match message:
                case Noted(job.id, job.fence):
                    progress(message)
                case Done(job.id, job.fence):
                    return self._answered(message)
                case Whereabouts(job.id, job.fence):
                    self.where = message.stack
                    self._told_where()
                case Noted() | Done() | Whereabouts():
                    self.strays += 1  # from code that an earlier job has left running
                case _:
                    death = await self._reaped()
                    return Crashed(death.attempt_error(self.pid))

    def ask_where(self, told: Callable[[], None]) -> None:
        """Ask where its handler is; `told` is called when `where` has the answer."""
        self._told_where = told
        self.tell(Where())

    def cancel(self, job: Job) -> None:
        """Tell the handler to stop."""
        self.tell(Cancel(job.id, job.fence))

    def kill(self) -> None:
        """Kill it and all its descendants."""
        self.usable = False
        if self._process is not None and self._process.returncode is None:
            kill_all([self.pid, *descendants(self.pid)])

    def tell(self, message: ToProcess) -> None:
        """Send a message; it is lost if the process has ended."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode(message))

    async def close(self) -> None:
        """Let it leave its lifespan hooks and end, or kill it. May be called again."""
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
        if self._faults is not None:
            self._faults.close()

    def _answered(self, message: Done) -> Outcome:
        outcome = outcome_of(message)
        self.memory_mib = message.memory_mib
        self.failures = self.failures + 1 if isinstance(outcome, Failed) else 0
        why = message.rebuild or (self.strays and f"{self.strays} messages were of an earlier job")
        if why:
            _LOG.warning("process %s is replaced after job %s: %s", self.pid, message.job_id, why)
        self._busy, self.usable = False, not why
        return outcome

    async def _hear(self, running: RunningJob | None = None) -> FromProcess | None:
        """Return the next message, after logging log records; None when it has ended."""
        while self._reader is not None:
            try:
                line = await self._reader.readuntil(b"\n")
            except (asyncio.IncompleteReadError, ConnectionError, ValueError):
                return None
            message = READ_FROM.decode(line[:-1])
            if not isinstance(message, Logged):
                return message
            self._last_log = message.message
            message.log()
            if running is not None and message.fields.get("job_id") == running.job.id:
                text = f"{message.message}\n{message.exception}".rstrip("\n")
                running.log(SystemClock().now_us(), message.level, message.logger, text)
        return None

    async def _reaped(self) -> Death:
        """Kill it, and return how it ended."""
        self.kill()
        return await self._ended()

    async def _ended(self) -> Death:
        """Wait until it has ended. All callers share one wait: the kernel answers once."""
        if self._ending is None:
            self._ending = asyncio.create_task(asyncio.to_thread(self._wait))
        return await asyncio.shield(self._ending)

    def _wait(self) -> Death:
        unknown = Death(exit_code=None, signal=None, memory_mib=0.0)
        if self._process is None or self._faults is None:
            return unknown
        try:
            if hasattr(os, "waitid"):  # while it is a zombie its pid names no other group
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # the processes it has left
            _, status, usage = os.wait4(self.pid, 0)
        except ChildProcessError:  # a handler in this process has reaped it
            self._process.returncode = 0
            return unknown
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return Death.reaped(status, usage, self._faults, last_log=self._last_log)
