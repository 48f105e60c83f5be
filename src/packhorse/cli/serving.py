# SPDX-License-Identifier: MIT
"""The worker itself: the app is imported here, in a process of a supervisor or in this very one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from packhorse.cli.discovery import FoundApp
from packhorse.cli.listening import exit_after_signals, run_listening
from packhorse.cli.render import note
from packhorse.cli.target import found_app
from packhorse.cli.version import installed_version
from packhorse.durations import seconds_text
from packhorse.events import WorkerStarted
from packhorse.running import RunOptions, run_options
from packhorse.supervisor.link import Link

__all__ = ["chosen_queues", "chosen_run_options", "serve"]

#: Options that go to the worker as they are.
_RUN_OPTIONS: Final = (
    *("concurrency", "burst", "max_jobs", "lease", "shutdown_timeout", "default_timeout"),
    *("process_slots", "process_memory_mib", "process_cpu", "process_max_jobs"),
    *("process_max_failures", "process_recycle_mib"),
    *("recycle_jobs", "recycle_failures", "recycle_mib"),
)
_MEMORY: Final = "memory:"


def serve(app_name: str | None, flags: Mapping[str, Any], link: Link | None) -> int:
    """Run the app's worker until it ends; the exit code."""
    if link is not None:
        link.begin()
    found = found_app(app_name, quiet=not flags["banner"])
    try:
        return _run(found, flags, link)
    finally:
        found.app.close()


def chosen_queues(queues: Sequence[Sequence[str]]) -> list[str]:
    """The queues named, in order."""
    return [name for names in queues for name in names]


def chosen_run_options(flags: Mapping[str, Any]) -> RunOptions:
    """What `app.run` takes of the flags."""
    chosen: Any = {name: flags[name] for name in _RUN_OPTIONS if flags[name] is not None}
    options: RunOptions = chosen
    return options


def _run(found: FoundApp, flags: Mapping[str, Any], link: Link | None) -> int:
    from packhorse import logs

    app = found.app
    app.origin = found.name
    app.code_version = flags["code_version"]
    options = chosen_run_options(flags)
    if not app.registry.names:
        note(f"{found.name} declares no tasks, so there is nothing this worker could run.")
    schema = app.store.migrate()
    if flags["banner"]:
        app.on(WorkerStarted)(lambda event: _print_banner(event, found, schema, options))
    logs.configure(flags["log_level"], flags["log_format"])
    logs.attach(app.bus)
    if link is not None:
        # A store inside this process can be kept by nobody else.
        link.url = None if app.store.label.startswith(_MEMORY) else app.url
        link.app = found.name
        link.keep_log()
        app.link = link
    queues = chosen_queues(flags["queues"])
    report, signals = run_listening(lambda: app.arun(queues or None, **options))
    if report.problem:
        note(f"The worker left by itself: {report.problem}")
    return exit_after_signals(report.exit_code, signals)


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
