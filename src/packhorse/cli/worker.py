# SPDX-License-Identifier: MIT
"""`packhorse worker`: run jobs until told to stop."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from packhorse.cli.exits import ToldToStop
from packhorse.cli.options import (
    NAME,
    app_argument,
    bounds,
    duration,
    queue_choices,
    queue_names,
    reserved,
)
from packhorse.cli.output import note
from packhorse.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from packhorse.logs.lines import Lines
    from packhorse.runtime.supervisor.supervisor import Supervisor

F = TypeVar("F", bound=Callable[..., Any])

#: Flags with one value that `app.run` takes too.
RUN_VALUES: Final = (
    *("concurrency", "max_jobs", "lease", "shutdown_timeout", "default_timeout"),
    *("process_slots", "process_memory_mib", "process_cpu"),
    *("process_max_jobs", "process_max_failures", "process_recycle_mib"),
    *("recycle_jobs", "recycle_failures", "recycle_mib", "recycle_on"),
)
#: Flags with one value that a supervisor passes on to its processes.
_VALUES: Final = ("url", *RUN_VALUES, "log_level", "log_format", "log_config", "code_version")
#: Changed files named as the reason of a reload.
_CHANGES_NAMED: Final = 3
_LOG: Final = logging.getLogger("packhorse")


def _option(*names: str, **settings: Any) -> Callable[[F], F]:
    """Declare an option that the environment may set as well."""
    variable = "PACKHORSE_" + names[-1].removeprefix("--").replace("-", "_").upper()
    return click.option(*names, envvar=variable, show_envvar=True, **settings)


@click.command()
@app_argument
@click.option(
    "--url", type=NAME, metavar="URL", help="The store to work on, instead of the app's own."
)
@_option(
    "--include",
    multiple=True,
    type=NAME,
    metavar="MODULE",
    help="A module that declares tasks of the app, to be imported; may be given several times.",
)
@_option(
    "-q",
    "--queues",
    multiple=True,
    type=queue_names,
    shell_complete=queue_choices,
    help="Queues to serve, with commas between. Default: all the app declares, and 'default'. "
    "'mail:10' runs at most 10 jobs of mail at once in each process.",
)
@_option("-c", "--concurrency", type=int, help="Jobs at once in each process. Default: 100.")
@_option(
    "--reserve",
    type=reserved,
    metavar="critical=N",
    help="Slots of each process that only jobs of that priority, or a more urgent one, take.",
)
@_option(
    "-p",
    "--processes",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Worker processes, under one small parent that watches and replaces them.",
)
@click.option(  # not from the environment, which the processes it starts inherit
    "--autoscale",
    type=bounds,
    metavar="MIN..MAX",
    help="Worker processes by demand, within these bounds. Each queue's autoscale says when there "
    "are to be more or fewer; one that is no longer wanted finishes its jobs.",
)
@click.option("--burst", is_flag=True, help="Leave when there is nothing left to do.")
@click.option("--max-jobs", type=int, help="Leave after so many attempts, in each process.")
@_option(
    "--lease", type=duration, help="How long jobs of a dead worker stay its own. Default: 30s."
)
@_option(
    "--shutdown-timeout",
    type=duration,
    help="How long running jobs may go on after a signal. Default: 30s.",
)
@_option(
    "--default-timeout",
    type=duration,
    help="How long an attempt may take when neither job nor task says. Default: 300s.",
)
@_option(
    "--process-slots",
    type=int,
    help="Processes for tasks with executor='process'. Default: one per core.",
)
@_option("--process-memory-mib", type=int, help="MiB each of these may ask for. Default: no limit.")
@_option("--process-cpu", type=duration, help="CPU time a job may use in one. Default: no limit.")
@_option("--process-max-jobs", type=int, help="Jobs until one is replaced. Default: 10000.")
@_option(
    "--process-max-failures",
    type=int,
    help="Failures in a row until one is replaced. Default: 10.",
)
@_option("--process-recycle-mib", type=int, help="MiB after a job, from which one is replaced.")
@_option("--recycle-jobs", type=int, help="Jobs until a worker process is replaced.")
@_option("--recycle-failures", type=int, help="Failures in a row until one is replaced.")
@_option("--recycle-mib", type=int, help="MiB in memory, from which one is replaced.")
@_option(
    "--recycle-on",
    type=click.Choice(["fatal", "unexpected"]),
    help="Exceptions after which any process is replaced: fatal, or all a task does not name.",
)
@_option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error", "critical"], case_sensitive=False),
    default="info",
    show_default=True,
)
@_option(
    "--log-format",
    type=click.Choice(["auto", "console", "json"]),
    default="auto",
    show_default=True,
    help="auto: console on a terminal, JSON elsewhere.",
)
@_option(
    "--log-config",
    metavar="FILE",
    help="Set up logging by this JSON or TOML file (logging.config.dictConfig) instead; 'none' "
    "leaves it as the app sets it up.",
)
@_option(
    "--http",
    metavar="HOST:PORT",
    help="Answer /livez, /readyz, /metrics and /status there; off unless given.",
)
@click.option(
    "--reload",
    is_flag=True,
    help="For development: restart the processes when a Python file here changes.",
)
@_option(
    "--code-version",
    metavar="TEXT",
    help="What 'workers list' shows as the version of your code. Default: a fingerprint.",
)
@_option(
    "--in-process",
    is_flag=True,
    help="Run in this very process, without a parent that watches it; for debuggers.",
)
@click.option("--banner/--no-banner", default=True, help="Say at the start what runs where.")
def worker(*, app_name: str | None, **flags: Any) -> None:
    """Run the jobs of APP until told to stop.

    SIGTERM, SIGHUP and Ctrl-C let running jobs finish; a second one gives them back, a third
    leaves at once. Exit code 8 says that jobs had to be abandoned. SIGUSR1 stops claiming, and
    SIGUSR2 goes on.
    """
    leave_when_told()
    if flags["autoscale"] is not None:
        from packhorse.cli.autoscale import run_scaled

        raise click.exceptions.Exit(run_scaled(app_name, flags, flags["autoscale"]))
    from packhorse.runtime.supervisor.link import link_from_environment

    link = link_from_environment(os.environ)
    if link is None and not flags["in_process"]:
        raise click.exceptions.Exit(_run_supervised(app_name, flags))
    if flags["processes"] > 1 or flags["reload"] or flags["http"]:
        raise click.UsageError(
            "--in-process is one process without a supervisor; leave --processes, --reload and "
            "--http out"
        )
    from packhorse.cli.serving import serve  # user code is imported from here on

    raise click.exceptions.Exit(serve(app_name, flags, link))


def leave_when_told() -> None:
    """Exit at once on SIGTERM and SIGHUP until the worker handles signals itself.

    Ignore SIGUSR1 and SIGUSR2 meanwhile: they are for workers that have begun.
    """
    from packhorse.runtime.supervisor.posix import stop_signals

    for number in set(stop_signals()) - {signal.SIGINT}:
        signal.signal(number, _leave)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    note("Told to stop before the worker had begun.")
    raise ToldToStop(0)


def worker_command(app_name: str | None, flags: Mapping[str, Any], *more: str) -> list[str]:
    """Write out the command line of one process."""
    command = [sys.executable, "-m", "packhorse", "worker", "--processes", "1", *more]
    for names in flags["queues"]:
        command += ["--queues", ",".join(names)]
    for name in _VALUES:
        if flags.get(name) is not None:
            command += [f"--{name.replace('_', '-')}", str(flags[name])]
    if flags.get("reserve"):
        kept = [f"{name}={count}" for name, count in flags["reserve"].items()]
        command += ["--reserve", ",".join(kept)]
    for name in flags["include"]:
        command += ["--include", name]
    if flags["burst"]:
        command.append("--burst")
    command.append("--banner" if flags["banner"] else "--no-banner")
    return command if app_name is None else [*command, app_name]


def _run_supervised(app_name: str | None, flags: Mapping[str, Any]) -> int:
    """Run a supervisor of worker processes; return the exit code."""
    import asyncio

    from packhorse.core.clock import SystemChance, SystemClock
    from packhorse.runtime.supervisor.fleet import reporting
    from packhorse.runtime.supervisor.link import COUNTING
    from packhorse.runtime.supervisor.posix import adopt_orphans
    from packhorse.runtime.supervisor.probes import parse_address, probes
    from packhorse.runtime.supervisor.supervisor import Supervisor

    def command(first: bool) -> list[str]:  # noqa: FBT001 - called by the supervisor alone
        banner = flags["banner"] and first
        return worker_command(app_name, {**flags, "banner": banner}, "--in-process")

    address = None if flags["http"] is None else parse_address(flags["http"])
    folder = watched_folder() if flags["reload"] else None
    if address is not None:
        os.environ[COUNTING] = "1"  # its processes inherit it
        os.environ.pop("PACKHORSE_HTTP", None)  # and this they must not

    async def run() -> int:
        supervisor = Supervisor(
            command, flags["processes"], clock=SystemClock(), chance=SystemChance()
        )
        async with probes(supervisor, address) as bound, reporting(supervisor, os.environ):
            if bound is not None:
                _LOG.info("answering probes at http://%s:%s/livez", *bound[:2])
            async with nullcontext() if folder is None else beside(_reload(supervisor, folder)):
                return await supervisor.run()

    set_up_logs(flags)
    adopt_orphans()  # so that nothing a dead worker process started outlives it
    return asyncio.run(run())


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Run a coroutine beside what is inside, and end it with that."""
    import asyncio

    running = asyncio.create_task(work)
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _reload(supervisor: Supervisor, folder: Path) -> None:
    """Replace the processes whenever a Python file in `folder` changes."""
    async for reason in changed_files(folder):
        supervisor.replace_all(reason)


async def changed_files(folder: Path) -> AsyncIterator[str]:
    """Yield which Python files changed, whenever some did."""
    from watchfiles import PythonFilter, awatch

    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it counts every change
    async for changes in awatch(folder, watch_filter=PythonFilter()):
        names = sorted({path.removeprefix(f"{folder}/") for _, path in changes})
        yield f"{', '.join(names[:_CHANGES_NAMED])} changed"


def watched_folder() -> Path:
    """Return the folder to watch for changed code; fail if watchfiles is not installed."""
    from importlib.util import find_spec
    from pathlib import Path

    if find_spec("watchfiles") is None:
        raise ConfigError(
            "watching for changed files needs the package watchfiles; install it with: "
            "pip install 'packhorse[dev]'"
        )
    return Path.cwd()


def set_up_logs(flags: Mapping[str, Any], lines: Lines | None = None) -> Lines | None:
    """Set up logging by the flags; return where lines go, or None if the user decides that."""
    from packhorse.logs.setup import set_up

    return set_up(flags["log_level"], flags["log_format"], flags["log_config"], lines=lines)


def shows_banner(flags: Mapping[str, Any]) -> bool:
    """Whether to print the banner: programs find its facts in the log."""
    from packhorse.logs import is_for_people

    return bool(flags["banner"]) and is_for_people(flags["log_format"])
