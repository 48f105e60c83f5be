# SPDX-License-Identifier: MIT
"""`packhorse worker`: run jobs until told to stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypedDict, TypeVar, Unpack

import click

from packhorse.cli.discovery import FoundApp
from packhorse.cli.fleet import ENDLESS, run_fleet, start_process
from packhorse.cli.listening import exit_after_signals, run_listening
from packhorse.cli.parameters import duration, queue_names
from packhorse.cli.processes import run_processes, worker_command
from packhorse.cli.render import note
from packhorse.cli.scaler import Bounds, Scaler, bounded_rules, bounds
from packhorse.cli.target import found_app
from packhorse.cli.version import installed_version
from packhorse.clock import SECOND_US, SystemClock
from packhorse.durations import seconds_text
from packhorse.errors import ConfigError
from packhorse.events import WorkerStarted
from packhorse.running import RunOptions, run_options

__all__ = ["worker"]

F = TypeVar("F", bound=Callable[..., Any])

#: Options that go to the worker as they are.
_RUN_OPTIONS: Final = (
    *("concurrency", "burst", "max_jobs", "lease", "shutdown_timeout", "default_timeout"),
)


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
    help="Worker processes. More than one are started and signalled together; one that ends is "
    "not started again.",
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
@click.option("--banner/--no-banner", default=True, help="Say at the start what runs where.")
def worker(app_name: str | None, **flags: Unpack[_Flags]) -> None:
    """Run the jobs of APP until told to stop.

    SIGTERM and SIGINT (Ctrl-C) let running jobs finish; a second one gives them back, a third
    leaves at once. Exit code 8 says that jobs had to be abandoned.
    """
    if flags["autoscale"] is not None:
        raise click.exceptions.Exit(_run_scaled(app_name, flags, flags["autoscale"]))
    if flags["processes"] > 1:
        commands = [
            worker_command(app_name, {**flags, "banner": flags["banner"] and first})
            for first in (True, *(False for _ in range(flags["processes"] - 1)))
        ]
        raise click.exceptions.Exit(run_processes(commands))
    found = found_app(app_name, quiet=not flags["banner"])
    try:
        code = _run(found, flags)
    finally:
        found.app.close()
    raise click.exceptions.Exit(code)


def _run_scaled(app_name: str | None, flags: _Flags, chosen: Bounds) -> int:
    """Be the parent of as many processes as the queues ask for."""
    if flags["burst"] or flags["processes"] > 1:
        raise click.UsageError(
            "--autoscale decides by itself how many processes there are, and goes on until told to "
            "stop; leave --processes and --burst out"
        )
    found, clock = found_app(app_name, quiet=not flags["banner"]), SystemClock()
    app, options = found.app, _run_options(flags)
    try:
        if app.store.label.startswith("memory:"):
            raise ConfigError(
                "memory:// lives inside one process, so processes cannot share its work; give the "
                "app a URL such as sqlite:///jobs.db"
            )
        app.store.migrate()
        effective = run_options(_queues(flags) or app.known_queues, options)
        rules = bounded_rules(effective.queues, app.scales, chosen)
        scaler = Scaler(app.store, rules, least=chosen[0], slots=effective.concurrency, clock=clock)
        command = worker_command(app_name, {**flags, "shutdown_timeout": ENDLESS, "banner": False})
        return run_fleet(
            lambda: start_process(command),
            scaler.wanted,
            shutdown_timeout_s=effective.shutdown_timeout_us / SECOND_US,
            clock=clock,
        )
    finally:
        app.close()


def _run(found: FoundApp, flags: _Flags) -> int:
    from packhorse import logs

    app = found.app
    options = _run_options(flags)
    if not app.registry.names:
        note(f"{found.name} declares no tasks, so there is nothing this worker could run.")
    schema = app.store.migrate()
    if flags["banner"]:
        app.on(WorkerStarted)(lambda event: _print_banner(event, found, schema, options))
    logs.configure(flags["log_level"], flags["log_format"])
    logs.attach(app.bus)
    report, signals = run_listening(lambda: app.arun(_queues(flags) or None, **options))
    if report.problem:
        note(f"The worker left by itself: {report.problem}")
    return exit_after_signals(report.exit_code, signals)


def _queues(flags: _Flags) -> list[str]:
    return [name for names in flags["queues"] for name in names]


def _run_options(flags: _Flags) -> RunOptions:
    values: dict[str, Any] = dict(flags)
    chosen: Any = {name: values[name] for name in _RUN_OPTIONS if values[name] is not None}
    options: RunOptions = chosen
    return options


def _print_banner(
    started: WorkerStarted, found: FoundApp, schema: int, options: RunOptions
) -> None:
    effective = run_options(started.queues, options)
    stop = seconds_text(effective.shutdown_timeout_us)
    for line in (
        f"packhorse {installed_version()} worker {started.worker_id}",
        f"  app          {found}",
        f"  store        {started.store} (schema {schema})",
        f"  queues       {', '.join(started.queues)}",
        f"  concurrency  {started.concurrency}",
        f"  lease        {seconds_text(effective.lease_us)}",
        (
            f"  Ctrl-C       lets running jobs finish ({stop}); twice gives them back, "
            "three times leaves"
        ),
    ):
        note(line)
