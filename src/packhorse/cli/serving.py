# SPDX-License-Identifier: MIT
"""Import the app and run its worker in this process.

The process is a supervisor's child, or stands alone with --in-process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

from packhorse.app import Packhorse
from packhorse.cli.discovery import FoundApp, found_app
from packhorse.cli.options import capped
from packhorse.cli.output import did_you_mean, note
from packhorse.cli.worker import RUN_VALUES, set_up_logs, shows_banner
from packhorse.client.run_options import RunOptions, run_options
from packhorse.core.config import WorkerOptions
from packhorse.core.durations import span_text
from packhorse.core.sizes import THE_STORE
from packhorse.errors import ConfigError
from packhorse.events import WorkerStarted
from packhorse.runtime.supervisor.link import SupervisorLink
from packhorse.runtime.supervisor.posix import STOP_SIGNALS
from packhorse.runtime.worker.event_loop import run_to_end
from packhorse.runtime.worker.shutdown import what_ctrl_c_does
from packhorse.stores.protocol import Store
from packhorse.version import installed_version

#: Flags that `app.run` takes as they are.
_RUN_OPTIONS: Final = ("burst", "reserve", *RUN_VALUES)
_MEMORY: Final = "memory:"
_LOG: Final = logging.getLogger("packhorse")
#: The first asks the worker to stop; from this one on it was forced.
_FORCING: Final = 2
#: What shells add to a signal's number.
_SIGNAL_BASE: Final = 128
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def serve(app_name: str | None, flags: Mapping[str, Any], link: SupervisorLink | None) -> int:
    """Run the app's worker until it ends; return the exit code."""
    if link is not None:
        link.begin()
    # Before the app is imported, so that its log lines are seen and its own set-up comes last.
    lines = None if link is None else link.memory.lines
    if set_up_logs(flags, lines) is None and link is not None:
        link.keep_log()
    quiet = not shows_banner(flags)
    found = found_app(app_name, flags["include"], url=flags["url"], quiet=quiet)
    with closing(found.app):
        return _run(found, flags, link)


def chosen_queues(queues: Sequence[Sequence[str]]) -> list[str]:
    """Flatten the values of --queues, without caps."""
    return [capped(name)[0] for names in queues for name in names]


def chosen_run_options(flags: Mapping[str, Any]) -> RunOptions:
    """Pick the flags that `app.run` takes."""
    chosen: Any = {name: flags[name] for name in _RUN_OPTIONS if flags[name] is not None}
    caps = dict(capped(name) for names in flags["queues"] for name in names)
    chosen["queue_caps"] = {name: cap for name, cap in caps.items() if cap is not None}
    options: RunOptions = chosen
    return options


def _run(found: FoundApp, flags: Mapping[str, Any], link: SupervisorLink | None) -> int:
    from packhorse import logs

    app = found.app
    app.origin = found.name
    app.code_version = flags["code_version"]
    options = chosen_run_options(flags)
    if not app.registry.names:
        _LOG.warning(
            "%s declares no tasks, so there is nothing this worker could run. Name the modules "
            "that declare them: Packhorse(include=['shop.mail']), or --include shop.mail.",
            found.name,
        )
    schema = app.store.migrate()
    if app.store.label.startswith(_MEMORY):
        _refuse_empty(app)
    if shows_banner(flags):
        app.on(WorkerStarted)(lambda event: _print_banner(event, found, schema, options))
    logs.attach(app.bus)
    if link is not None:
        # The supervisor cannot reach a store inside this process.
        link.url = None if app.store.label.startswith(_MEMORY) else app.url
        link.app = found.name
        app.link = link
    queues = chosen_queues(flags["queues"])
    known = app.known_queues
    waits = not options.get("burst")
    for line in unknown_queues(queues, declared=known, store=app.store, waits=waits):
        _LOG.warning(line)
    report, signals = _run_listening(lambda: app.arun(queues or None, **options))
    if report.problem:
        _LOG.error("the worker left by itself: %s", report.problem)
    return exit_after_signals(report.exit_code, signals)


def _refuse_empty(app: Packhorse) -> None:
    """Refuse a store in memory where only other processes could submit, which cannot reach it."""
    schedules = app._declared_schedules()  # noqa: SLF001 - of our own package
    counts = app.store.run(app.store.inspection.counts())
    if not (schedules or app.lifespans or counts):
        raise ConfigError(
            "memory:// lives inside the process that uses it, so no job of another process would "
            "ever reach this worker; give the app a URL such as sqlite:///jobs.db"
        )


def unknown_queues(
    queues: Sequence[str], *, declared: Sequence[str], store: Store, waits: bool
) -> Iterator[str]:
    """Yield a warning for each queue that neither the app nor the store knows.

    This is no error: another program may be the first to submit to it.
    """
    strange = [name for name in queues if name not in declared]
    if not strange:
        return
    stored = {state.settings.name for state in store.run(store.queues.queues())} - {THE_STORE}
    known = sorted({*declared, *stored})
    for name in strange:
        if name not in stored:
            hint = did_you_mean(name, known, f"known are: {', '.join(known)}")
            so = "this worker waits until one is submitted to it" if waits else "nothing runs"
            yield f"queue {name!r} is declared nowhere and holds no jobs, so {so}; {hint}"


def _with_cap(queue: str, options: WorkerOptions) -> str:
    cap = options.queue_caps.get(queue)
    return queue if cap is None else f"{queue}:{cap}"


def _print_banner(
    started: WorkerStarted, found: FoundApp, schema: int, options: RunOptions
) -> None:
    effective = run_options(started.queues, options)
    for line in (
        f"packhorse {installed_version()} worker {started.worker}",
        f"  app          {found}",
        f"  store        {started.store} (schema {schema})",
        f"  queues       {', '.join(_with_cap(name, effective) for name in started.queues)}",
        f"  concurrency  {started.concurrency}",
        f"  lease        {span_text(effective.lease_us)}",
        f"  Ctrl-C       {what_ctrl_c_does(effective.shutdown_timeout_us)}",
    ):
        note(line)


class _ListeningLoop(asyncio.SelectorEventLoop):
    """An event loop that records the stop signals its handlers are called for.

    The worker decides what a signal does; the number of signals decides the exit code.
    """

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[int] = []

    def add_signal_handler(
        self, sig: int, callback: Callable[[Unpack[Ts]], object], *args: *Ts
    ) -> None:
        def heard(*given: *Ts) -> None:
            if sig in STOP_SIGNALS:
                self.heard.append(sig)
            callback(*given)

        super().add_signal_handler(sig, heard, *args)


def _run_listening(work: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T, list[int]]:
    """Run a coroutine on its own loop; return its result and the signals handled."""
    loop = _ListeningLoop()
    return run_to_end(work, lambda: loop), loop.heard


def exit_after_signals(exit_code: int, heard: list[int]) -> int:
    """Return the worker's exit code, or that of the signal that forced it."""
    if exit_code == 0 and len(heard) >= _FORCING:
        return _SIGNAL_BASE + heard[-1]
    return exit_code
