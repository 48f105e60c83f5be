# SPDX-License-Identifier: MIT
"""A process that runs handlers declared with `executor="process"`, one at a time.

    setup ──import the app, enter its lifespan hooks──▶ ready ──run──▶ done ──run──▶ done ── ...

It ends when its worker does. A handler can harm this process only: a copy that it forks cannot
speak to the worker, and processes it leaves behind are killed before the next job begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import functools
import importlib
import logging
import os
import resource
import runpy
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any, Final

from packhorse.artifacts import Place
from packhorse.attempt_host import HostTransaction
from packhorse.breaker import BreakerBook
from packhorse.context import Context, job_fields
from packhorse.core.clock import SECOND_US, SystemClock
from packhorse.core.job import Progress
from packhorse.core.job_logs import RunningJob
from packhorse.core.outcome import Outcome
from packhorse.errors import ConfigError, UsageError
from packhorse.runtime.supervisor.messages import encode
from packhorse.runtime.supervisor.posix import (
    adopt_orphans,
    child_pids,
    die_with_parent,
    has_children,
    kill_all,
    reaped,
)
from packhorse.runtime.worker.attempt import Attempt, Ending, Stage
from packhorse.runtime.worker.contexts import StoreHost, breaker_book, made_context
from packhorse.runtime.worker.executor import Executor
from packhorse.runtime.worker.handlers import HandlerBook
from packhorse.runtime.worker.hooks import Instruments, entered
from packhorse.runtime.worker.outcomes import described
from packhorse.runtime.worker.processes.messages import (
    READ_TO,
    Broken,
    Cancel,
    LeaseGone,
    Logged,
    Noted,
    Ready,
    Run,
    Setup,
    ToProcess,
    Where,
    Whereabouts,
    done,
)
from packhorse.runtime.worker.recycling import alarm, memory_mib
from packhorse.runtime.worker.runners import leave_copy
from packhorse.runtime.worker.stacks import stack_of_thread
from packhorse.stores.protocol import Store

#: Names the descriptors; stays set, so that no worker is started in the process.
VARIABLE: Final = "PACKHORSE_PROCESS"
_LOG: Final = logging.getLogger("packhorse.worker")
_LOGGED_LENGTH_MAX: Final = 16_000
_CHUNK: Final = 65_536
_NONE: Final[frozenset[int]] = frozenset()
_MAIN: Final = "__mp_main__"  # as multiprocessing does, so that scripts start nothing
#: Processes of the standard library that may outlive a job.
_HELPERS: Final = (
    ("multiprocessing.resource_tracker", "_resource_tracker", "_pid"),
    ("multiprocessing.forkserver", "_forkserver", "_forkserver_pid"),
)
_PLAIN_FIELDS: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "taskName"}


def process_command() -> list[str]:
    """Return the command line that starts such a process."""
    # Not -m, which imports the module before `sys.path` is that of the worker.
    return [sys.executable, "-c", f"from {__name__} import main; main()"]


def main() -> None:
    """Serve the worker that started this process, until it ends."""
    channel, faults = map(int, os.environ[VARIABLE].split(","))
    for descriptor in (channel, faults):
        os.set_inheritable(descriptor, False)
    die_with_parent()
    faulthandler.enable(file=faults)
    # The worker ends this process; a signal to the whole group must not.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=channel) as connection:
        _Process(connection).serve()


class _Process:
    """The connection to the worker, and the job that runs."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._pid = os.getpid()
        self._sending = threading.Lock()
        self._log = _ToWorker(self)
        self._kept: frozenset[int] = frozenset()  # children from before the first job
        self._kept_tasks: set[asyncio.Task[Any]] = set()
        self._main_forks = True
        self._inbox: SimpleQueue[Setup | Run | None] = SimpleQueue()  # at most one job waits in it
        self._attempt: Attempt | None = None
        self._importing = True  # until then there are no hooks to leave
        self.lease_gone = False

    def serve(self) -> None:
        adopt_orphans()
        os.register_at_fork(before=self._forking, after_in_child=self._forked)
        threading.Thread(target=self._listen, name="packhorse-worker", daemon=True).start()
        setup = self._inbox.get()
        if not isinstance(setup, Setup):
            return
        logging.getLogger().addHandler(self._log)
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
            self._kept = child_pids(self._pid)
            self._kept_tasks = asyncio.all_tasks(runner.get_loop())
            self.send(Ready())
            try:
                self._run_jobs(app, setup, runner, state)
            finally:
                runner.run(stack.aclose())

    def send(self, message: Any) -> None:
        if os.getpid() != self._pid:
            return  # a forked copy sends nothing, even if Python has not seen the fork
        with self._sending, contextlib.suppress(OSError):  # the worker has ended
            self._connection.sendall(encode(message))

    def _forking(self) -> None:
        self._main_forks = threading.current_thread() is threading.main_thread()

    def _forked(self) -> None:
        """In a forked copy, close what belongs to the original, and end with it."""
        self._connection.close()
        faulthandler.disable()
        logging.getLogger().removeHandler(self._log)
        if self._main_forks:  # any other thread may end before the process does
            die_with_parent()

    def _import(self, setup: Setup) -> Any:
        try:
            return _imported(setup)
        finally:
            self._importing = False

    def _run_jobs(
        self, app: Any, setup: Setup, runner: asyncio.Runner, state: Mapping[str, Any]
    ) -> None:
        handlers, resources = HandlerBook(app.registry, {}, SECOND_US), _AppResources(app)

        def context(attempt: Attempt) -> Context:
            host = _ProcessHost(self, attempt, resources)
            return made_context(attempt, host, setup.worker, state)

        executor = Executor(context, app.places)
        instruments = Instruments(app._instruments, _complain)  # noqa: SLF001 - for workers alone
        while isinstance(message := self._inbox.get(), Run):
            attempt = Attempt(message.job, handlers.find(message.job), 0, *message.offsets_us)
            attempt.stage = Stage.RUNNING
            attempt.running = RunningJob(attempt.job, setup.worker, attempt.handler.worker_id)
            if message.start_by is not None and SystemClock.monotonic() > message.start_by:
                attempt.ending = Ending.TOO_LATE
            # The worker would not have begun a job with a lost lease.
            self.lease_gone, self._attempt = False, attempt
            if setup.cpu_s is not None:
                _limit_cpu(setup.cpu_s)
            executor.enter = None
            if message.carrier is not None:
                executor.enter = functools.partial(instruments.resumed, message.carrier)
            outcome = self._executed(executor, attempt, runner)
            self._attempt = None
            left = self._end_what_is_left(runner)
            rule = attempt.handler.rules.retry if setup.recycle_on == "unexpected" else None
            why = alarm(outcome, rule) or left
            mib = memory_mib() if setup.tells_memory else 0.0
            self.send(done(attempt.job, outcome, mib, rebuild=why))

    def _executed(self, executor: Executor, attempt: Attempt, runner: asyncio.Runner) -> Outcome:
        outcome: Outcome | None = None
        try:
            if attempt.handler.is_coroutine:
                outcome = runner.run(executor.execute(attempt))
            else:
                outcome = executor.execute_here(attempt)
            return outcome
        finally:
            if os.getpid() != self._pid:  # the handler has forked, and this is the copy
                leave_copy(outcome)

    def _end_what_is_left(self, runner: asyncio.Runner) -> str:
        """Kill processes that a handler has left; describe what was left, if anything."""
        ended = 0
        while alive := [each for each in self._strays() if not reaped(each)]:
            kill_all(alive)
            for pid in alive:  # its own children become ours, and are seen next time
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
            ended += len(alive)
        if ended:
            return f"it left {ended} process{'es' if ended > 1 else ''} running, now ended"
        tasks = len(asyncio.all_tasks(runner.get_loop()) - self._kept_tasks)
        return f"it left {tasks} asyncio task{'s' if tasks > 1 else ''} running" if tasks else ""

    def _strays(self) -> frozenset[int]:
        found = child_pids(self._pid) - self._kept if has_children() else _NONE
        return found - _helpers() if found else found

    def _listen(self) -> None:
        heard = b""
        with contextlib.suppress(OSError):
            while chunk := self._connection.recv(_CHUNK):
                *lines, heard = (heard + chunk).split(b"\n")
                for line in lines:
                    self._hear(READ_TO.decode(line))
        # The worker has closed the connection or ended. Without hooks to leave, or while a
        # handler runs, end at once.
        if self._attempt is not None or self._importing:
            os.killpg(os.getpid(), signal.SIGKILL)
        self._inbox.put(None)

    def _hear(self, message: ToProcess) -> None:
        match message:
            case Setup() | Run():
                self._inbox.put(message)
            case Cancel(job_id, fence):
                attempt = self._attempt
                if attempt is not None and (attempt.job.id, attempt.job.fence) == (job_id, fence):
                    attempt.ending = Ending.CANCEL  # seen by a context that is just being made
                    if attempt.context is not None:
                        attempt.context.request_cancel()
            case LeaseGone(gone):
                self.lease_gone = gone
            case Where():
                self._tell_where()

    def _tell_where(self) -> None:
        attempt = self._attempt
        if attempt is not None:
            stack = stack_of_thread(threading.main_thread().ident, own=False)
            self.send(Whereabouts(attempt.job.id, attempt.job.fence, stack))


class _AppResources:
    """See `Resources`: those of the imported app, whose store is opened when first needed."""

    monotonic = staticmethod(SystemClock.monotonic)

    def __init__(self, app: Any) -> None:
        self.app = app

    @property
    def store(self) -> Store:
        store: Store = self.app.store
        return store

    @property
    def places(self) -> Callable[[], Place | None]:
        places: Callable[[], Place | None] = self.app.places
        return places

    @functools.cached_property
    def breakers(self) -> BreakerBook:
        return breaker_book(self.store, self.monotonic)


class _ProcessHost(StoreHost):
    """The `packhorse.attempt_host.AttemptHost` of a job in this process."""

    __slots__ = ("_process",)

    def __init__(self, process: _Process, attempt: Attempt, resources: _AppResources) -> None:
        super().__init__(attempt, resources)
        self._process = process

    def note_progress(self, progress: Progress) -> None:
        self._process.send(Noted(self._job.id, self._job.fence, progress))

    def lease_lost(self) -> bool:
        return self._process.lease_gone

    def transaction(self) -> HostTransaction:
        raise UsageError(
            "ctx.transaction() is not there for tasks with executor='process': use a plain or an "
            "'async def' handler, or ctx.step()"
        )


def _complain(what: Callable[..., object], attempt: Attempt, error: BaseException) -> None:
    """Say what failed beside a job; the job was not touched by it."""
    name, found = getattr(what, "__qualname__", "?"), described(error)
    _LOG.error(
        "%s failed (%s: %s); job %s goes on", name, found.type, found.message, attempt.job.id
    )


class _ToWorker(logging.Handler):
    """Send log records to the worker, whose handlers write them."""

    def __init__(self, process: _Process) -> None:
        super().__init__()
        self._process = process

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # a line that cannot be sent is no reason to fail
            extra = {
                name: value if isinstance(value, (int, float, bool)) else _cut(str(value))
                for name, value in (job_fields() | record.__dict__).items()
                if name not in _PLAIN_FIELDS
            }
            trace = record.exc_info and logging.Formatter().formatException(record.exc_info)
            message, trace = _cut(record.getMessage()), _cut(trace or "")
            self._process.send(Logged(record.name, record.levelno, message, extra, trace))


def _cut(text: str) -> str:
    return text[:_LOGGED_LENGTH_MAX]


def _helpers() -> set[int | None]:
    """Return the pids of the standard library's own processes."""
    modules = ((sys.modules.get(name), holder, pid) for name, holder, pid in _HELPERS)
    return {getattr(getattr(module, holder, None), pid, None) for module, holder, pid in modules}


def _imported(setup: Setup) -> Any:
    """Import the app as the worker did."""
    # Relative paths must mean what they meant when the worker's app was made.
    if setup.folder:
        os.chdir(setup.folder)
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
    app = found if hasattr(found, "registry") else found()
    app.include(*setup.include)
    if setup.url not in (None, app.url):
        app.use_store(setup.url)
    app.registry.load()
    return app


def _limit(setup: Setup) -> None:
    """Limit the memory of this process from now on."""
    if setup.memory_bytes is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (setup.memory_bytes, hard))


def _limit_cpu(seconds: int) -> None:
    """Limit the CPU time of the next job; the kernel counts that of the whole process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime) + 1 + seconds
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
