# SPDX-License-Identifier: MIT
"""`packhorse worker`: run jobs until told to stop."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal, TypedDict, TypeVar, Unpack

import click

from packhorse.cli.parameters import Bounds, bounds, duration, queue_names

__all__ = ["worker"]

F = TypeVar("F", bound=Callable[..., Any])


class _Flags(TypedDict):
    queues: tuple[tuple[str, ...], ...]
    concurrency: int | None
    processes: int
    autoscale: Bounds | None
    burst: bool
    max_jobs: int | None
    lease: str | None
    shutdown_timeout: str | None
    default_timeout: str | None
    log_level: str
    log_format: Literal["auto", "console", "json"]
    banner: bool
    http: str | None
    reload: bool
    code_version: str | None
    in_process: bool
    process_slots: int | None
    process_memory_mib: int | None
    process_cpu: str | None
    process_max_jobs: int | None
    process_max_failures: int | None
    process_recycle_mib: int | None
    recycle_jobs: int | None
    recycle_failures: int | None
    recycle_mib: int | None


def _option(*names: str, **settings: Any) -> Callable[[F], F]:
    """An option that the environment may set as well."""
    variable = "PACKHORSE_" + names[-1].removeprefix("--").replace("-", "_").upper()
    return click.option(*names, envvar=variable, show_envvar=True, **settings)


@click.command()
@click.argument("app_name", metavar="[APP]", required=False)
@_option(
    "-q",
    "--queues",
    multiple=True,
    type=queue_names,
    help="Queues to serve, with commas between. Default: all the app declares, and 'default'.",
)
@_option("-c", "--concurrency", type=int, help="Jobs at once in each process. Default: 100.")
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
@_option("--process-max-jobs", type=int, help="Jobs until one is replaced. Default: 1000.")
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
    "--http",
    metavar="HOST:PORT",
    help="Answer /livez, /readyz, /metrics and /status there; off unless given.",
)
@click.option(
    "--reload",
    is_flag=True,
    help="For development: start the processes anew when a Python file here changes.",
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
def worker(app_name: str | None, **flags: Unpack[_Flags]) -> None:
    """Run the jobs of APP until told to stop.

    SIGTERM and SIGINT (Ctrl-C) let running jobs finish; a second one gives them back, a third
    leaves at once. Exit code 8 says that jobs had to be abandoned. SIGUSR1 stops claiming, and
    SIGUSR2 goes on.
    """
    from packhorse.cli.listening import leave_when_told

    leave_when_told()
    if flags["autoscale"] is not None:
        from packhorse.cli.scaled import run_scaled

        raise click.exceptions.Exit(run_scaled(app_name, flags, flags["autoscale"]))
    from packhorse.supervisor.link import link_from_environment

    link = link_from_environment(os.environ)
    if link is None and not flags["in_process"]:
        from packhorse.cli.processes import run_supervised

        raise click.exceptions.Exit(run_supervised(app_name, flags))
    if flags["processes"] > 1 or flags["reload"] or flags["http"]:
        raise click.UsageError(
            "--in-process is one process that nobody watches; leave --processes, --reload and "
            "--http out"
        )
    from packhorse.cli.serving import serve  # user code is imported from here on

    raise click.exceptions.Exit(serve(app_name, flags, link))
