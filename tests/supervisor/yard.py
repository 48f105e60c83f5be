# SPDX-License-Identifier: MIT
"""For tests with a supervisor and its processes: an app in a folder, and ways to watch it run.

Handlers say what they do by files beside the store, named after the job; nothing here waits for a
span of time where it can wait for a file, a line or a state.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from packhorse import JobHandle, Packhorse
from packhorse.core.clock import SystemChance, SystemClock
from packhorse.core.job import JobRecord
from packhorse.runtime.supervisor.supervisor import Supervisor

T = TypeVar("T")

SOURCE: Final = Path(__file__).resolve().parents[2] / "src"
PATIENCE_S: Final = 40.0
LOOK_S: Final = 0.02

JOBS: Final = '''
import asyncio, ctypes, os, pathlib, sys, time
from packhorse import Context, Packhorse, RetryPolicy

pathlib.Path(f"imported-{os.getpid()}").touch()
app = Packhorse(os.environ.get("YARD_URL", "sqlite:///jobs.db"))
C = ctypes.PyDLL(None)  # calls of a PyDLL keep the interpreter lock
ONCE = RetryPolicy(max_retries=0)

def say(word, job):
    pathlib.Path(f"{word}-{job.id}").write_text(str(os.getpid()))

def holding(seconds):
    """Hold the interpreter lock: no other thread of this process runs meanwhile."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        C.usleep(min(1_000_000, max(0, int((end - time.monotonic()) * 1e6))))

@app.task
def add(a: int, b: int = 0) -> int:
    return a + b

@app.task
async def hold(ctx: Context, seconds: float) -> dict:
    say("begun", ctx.job)
    sys.setswitchinterval(1000)
    holding(seconds)
    lost = ctx.lease_lost
    sys.setswitchinterval(0.005)
    return {"pid": os.getpid(), "lost": lost}

@app.task(timeout="1s", retry=ONCE)
async def block(ctx: Context) -> None:
    say("begun", ctx.job)
    sys.setswitchinterval(1000)
    holding(600)

@app.task
async def linger(ctx: Context, gate: str = "go") -> int:
    say("begun", ctx.job)
    while not os.path.exists(gate):
        await asyncio.sleep(0.02)
    return os.getpid()

@app.task
async def briefly(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return os.getpid()

@app.task
async def wait_awaiting(ctx: Context) -> None:
    say("begun", ctx.job)
    try:
        await asyncio.sleep(600)
    finally:
        say("noticed", ctx.job)

@app.task
def wait_in_a_thread(ctx: Context) -> None:
    say("begun", ctx.job)
    ctx.wait_cancelled(600)
    say("noticed", ctx.job)

def overflow():
    return sorted([1], key=lambda _: overflow())

def die(how):
    if how == "exit":
        os._exit(7)
    if how == "segfault":
        ctypes.string_at(0)
    if how == "overflow":
        sys.setrecursionlimit(10**9)
        overflow()
    os.kill(os.getpid(), 9)  # as the kernel does when memory is short

@app.task(max_crashes=2)
async def take_down(ctx: Context, how: str) -> None:
    say("begun", ctx.job)
    ctx.log.warning("about to %s", how)
    die(how)

@app.task(max_crashes=0)
def take_down_once(how: str) -> None:
    die(how)

@app.task(retry=ONCE)
async def fail_here(kind: str = "ValueError") -> None:
    raise {"ValueError": ValueError, "MemoryError": MemoryError}[kind]("as asked")

@app.task(timeout="0.3s", retry=ONCE)
def deaf(ctx: Context) -> None:
    say("begun", ctx.job)
    while not os.path.exists("enough"):
        time.sleep(0.02)

@app.task(timeout="0.3s", retry=ONCE)
async def swallow(ctx: Context) -> None:
    say("begun", ctx.job)
    while not os.path.exists("enough"):
        try:
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            pass
'''

#: Tasks that run in processes of their own.
IN_PROCESSES: Final = """
@app.lifespan
async def resources():
    pathlib.Path(f"entered-{os.getpid()}").touch()
    yield {"made_in": os.getpid()}
    pathlib.Path(f"left-{os.getpid()}").touch()

@app.task(executor="process")
def look(ctx: Context, number: int) -> dict:
    ctx.progress(number, 10, "looking")
    ctx.log.warning("looked at %s", number)
    return {"pid": os.getpid(), "made_in": ctx.state["made_in"], "attempt": ctx.job.attempt,
            "mine": ctx.still_mine(), "lost": ctx.lease_lost,
            "offsets_s": [at_us / 1e6 - time.time()
                          for at_us in (ctx._link.passed_us(), ctx._link.now_us())]}

@app.task(executor="process")
def quick() -> None:
    pass

@app.task(executor="process")
def hold_process(ctx: Context) -> None:
    say("begun", ctx.job)
    while not os.path.exists("go"):
        time.sleep(0.02)

@app.task(executor="process")
async def wait_a_little() -> int:
    await asyncio.sleep(0.01)
    return os.getpid()

if os.environ.get("YARD_WANDERS"):
    os.makedirs("elsewhere", exist_ok=True)
    os.chdir("elsewhere")

@app.task(executor="process")
def submit_elsewhere() -> str:
    os.makedirs("further", exist_ok=True)
    os.chdir("further")
    return wait_a_little.enqueue().id

@app.task(executor="process", max_crashes=1)
def crash(how: str) -> None:
    die(how)

@app.task(executor="process", timeout="0.5s", retry=ONCE)
def spin(ctx: Context) -> None:
    say("begun", ctx.job)
    while True:
        pass

@app.task(executor="process")
def obey(ctx: Context) -> None:
    say("begun", ctx.job)
    ctx.wait_cancelled(600)
    say("noticed", ctx.job)

@app.task(executor="process")
def ignore(marker: str) -> None:
    pathlib.Path(marker).write_text(str(os.getpid()))
    time.sleep(600)

@app.task(executor="process", retry=ONCE)
def fail() -> None:
    raise ValueError(str(os.getpid()))

@app.task(executor="process", retry=ONCE)
def gobble(mib: int) -> int:
    return len(bytearray(mib * 1024 * 1024))

@app.task(executor="process", max_crashes=1)
def burn() -> None:
    while True:
        pass
"""

#: Runs the app as `packhorse worker` does, with a grace that no option of the command can set.
RUN: Final = """
import os, sys
from packhorse.runtime.supervisor.link import link_from_environment
from packhorse.runtime.worker.event_loop import run_to_end
link = link_from_environment(os.environ)
link.begin()
sys.path.insert(0, os.getcwd())
from jobs import app
link.url, link.app, app.link = app.url, "jobs:app", link
app.origin = "jobs:app"
link.keep_log()
app.store.migrate()
report = run_to_end(lambda: app.arun(**eval(sys.argv[1])))
app.close()
sys.exit(report.exit_code)
"""


def until(what: str, look: Callable[[], T | None], within_s: float = PATIENCE_S) -> T:
    """What `look` returns once that is neither None nor False nor empty."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {within_s} s in vain for {what}"
        time.sleep(LOOK_S)
    return found


def run_command(**options: Any) -> list[str]:
    """The command line of a worker process with these options of `app.run`."""
    return [sys.executable, "-c", RUN, repr(options)]


class Yard:
    """A folder with an app, a store, and the processes a test has started."""

    def __init__(self, folder: Path, source: str = JOBS) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []
        (folder / "jobs.py").write_text(source, encoding="utf-8")
        self.app = self._app(source)
        self.app.store.migrate()

    def _app(self, source: str) -> Packhorse:
        """The app as a producer has it: tasks by name, handlers that never run here."""
        spec: dict[str, Any] = {"__name__": "jobs"}
        before = set(self.folder.iterdir())
        exec(compile(source, "jobs.py", "exec"), spec)
        for path in set(Path.cwd().iterdir()) - before:
            if path.name.startswith("imported-"):
                path.unlink()
        app: Packhorse = spec["app"]
        return app

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start `packhorse` with these arguments; its output goes to a file."""
        return self.python("-m", "packhorse", *arguments, **environment)

    def python(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start Python with these arguments; its output goes to a file."""
        with (self.folder / f"output-{len(self.processes)}.txt").open("w") as output:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(SOURCE), **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                text=True,
            )
        self.processes.append(process)
        return process

    def worker(self, *options: str, **environment: str) -> subprocess.Popen[str]:
        return self.start("worker", "jobs:app", "--log-format", "json", *options, **environment)

    def output(self, process: subprocess.Popen[str]) -> str:
        number = self.processes.index(process)
        return (self.folder / f"output-{number}.txt").read_text(encoding="utf-8")

    def begun(self, job: JobHandle[Any], *, than: int | None = None) -> int:
        """Wait until a job's handler has begun, in another process than that; its process."""

        def look() -> int | None:
            with contextlib.suppress(FileNotFoundError, ValueError):
                pid = int((self.folder / f"begun-{job.id}").read_text())
                return pid if pid != than else None
            return None

        return until(f"{job.id} to begin", look)

    def finished(self, job: JobHandle[Any]) -> Any:
        """Wait until a job has finished; all that is known of it."""
        until(f"{job.id} to finish", lambda: job.info().finished_at is not None)
        return job.info()

    def record(self, job: JobHandle[Any]) -> JobRecord:
        """All the store knows of a job."""
        found = self.app.store.run(self.app.store.inspection.job(job.id))
        assert found is not None
        return found

    def go(self, name: str = "go") -> None:
        """Let handlers go on."""
        (self.folder / name).touch()

    def stop(self, process: subprocess.Popen[str], number: int = signal.SIGTERM) -> int:
        process.send_signal(number)
        return process.wait(PATIENCE_S)

    def end(self) -> None:
        """End what still runs, each process by its own id."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(PATIENCE_S)
        self.app.close()


def lives(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def asked(url: str) -> tuple[int, str]:
    """What an address answers."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def probe_address(yard: Yard, process: subprocess.Popen[str]) -> str:
    """Where a worker that was started with `--http 127.0.0.1:0` answers."""

    def look() -> str | None:
        said = re.search(r"answering probes at (http://[^/]+)/livez", yard.output(process))
        return said[1] if said else None

    return until("the address of the probes", look)


def status(address: str) -> Any:
    """The status document."""
    return json.loads(asked(f"{address}/status")[1])


@contextlib.contextmanager
def opened(folder: Path, source: str) -> Iterator[Yard]:
    yard = Yard(folder, source)
    try:
        yield yard
    finally:
        yard.end()


@contextlib.asynccontextmanager
async def supervised(**options: object) -> AsyncIterator[Supervisor]:
    """A supervisor in this process, with one process of its own."""
    command = run_command(**options)
    supervisor = Supervisor(lambda _first: command, 1, clock=SystemClock(), chance=SystemChance())
    running = asyncio.create_task(supervisor.run())
    try:
        yield supervisor
    finally:
        supervisor.stop(signal.SIGTERM)
        supervisor.stop(signal.SIGTERM)
        await asyncio.wait_for(running, PATIENCE_S)


async def soon(what: str, look: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not look():
            await asyncio.sleep(LOOK_S)
