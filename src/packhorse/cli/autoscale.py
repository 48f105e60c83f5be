# SPDX-License-Identifier: MIT
"""`packhorse worker --autoscale`: run as many worker processes as the queues need.

Scaling down stops no running job: a process that is no longer needed gets one signal, and then
all the time its jobs need. The processes run without a shutdown timeout; this parent enforces it
when everything stops. A process that ends by itself is replaced, unless it ended right away.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

import click

from packhorse.cli.discovery import found_app
from packhorse.cli.exits import ExitCode
from packhorse.cli.fleet_probes import fleet_probes
from packhorse.cli.options import Bounds
from packhorse.cli.serving import chosen_queues, chosen_run_options
from packhorse.cli.worker import set_up_logs, shows_banner, worker_command
from packhorse.client.run_options import run_options
from packhorse.client.scaling import QueueSnapshot, loads, next_scaling, snapshot
from packhorse.core.clock import SECOND_US, Clock, SystemClock
from packhorse.core.policies.autoscale import ScaleRule, Scaling, check_scale
from packhorse.errors import ConfigError, StoreError
from packhorse.runtime.supervisor.fleet import FleetFigures
from packhorse.runtime.supervisor.posix import STOP_SIGNALS, stop_signals
from packhorse.runtime.supervisor.probes import parse_address
from packhorse.stores.protocol import Store

_LOG: Final = logging.getLogger("packhorse")
#: The shutdown timeout of the processes; this parent enforces the real one.
ENDLESS: Final = "3650d"
#: How often the store is asked for the demand.
_LOOK_S: Final = 1.0
#: A process that fails sooner than this would fail again.
_FAILED_AT_ONCE_S: Final = 5.0
#: The number of signals that ask a worker to stop, and to give back its jobs.
_STOP, _HURRY = 1, 2
#: Exit codes of a process that gave back its jobs.
_HURRIED: Final = (ExitCode.HUNG_UP, ExitCode.INTERRUPTED, ExitCode.TERMINATED)


def _refuse_others(flags: Mapping[str, Any]) -> None:
    if flags["burst"] or flags["processes"] > 1:
        raise click.UsageError(
            "--autoscale decides by itself how many processes there are, and goes on until told to "
            "stop; leave --processes and --burst out"
        )
    if flags["reload"] or flags["in_process"]:
        raise click.UsageError(
            "--autoscale runs several workers, which come and go; leave --reload and "
            "--in-process out"
        )


def run_scaled(app_name: str | None, flags: Mapping[str, Any], chosen: Bounds) -> int:
    """Run worker processes, each under its own supervisor; return the exit code."""
    _refuse_others(flags)
    set_up_logs(flags)
    clock, quiet = SystemClock(), not shows_banner(flags)
    found = found_app(app_name, flags["include"], url=flags["url"], quiet=quiet)
    options = chosen_run_options(flags)
    with closing(found.app) as app:
        if app.store.label.startswith("memory:"):
            raise ConfigError(
                "memory:// lives inside one process, so processes cannot share its work; give the "
                "app a URL such as sqlite:///jobs.db"
            )
        app.store.migrate()
        effective = run_options(chosen_queues(flags["queues"]) or app.known_queues, options)
        rules = bounded_rules(effective.queues, app.scales, chosen)
        scaler = Scaler(app.store, rules, least=chosen[0], slots=effective.concurrency, clock=clock)
        command = worker_command(app_name, {**flags, "shutdown_timeout": ENDLESS, "banner": False})
        address = None if flags["http"] is None else parse_address(flags["http"])
        os.environ.pop("PACKHORSE_HTTP", None)  # which is this parent's, not its processes'
        figures = FleetFigures()
        start = start_process if address is None else figures.start
        probes = fleet_probes(
            figures, address, store=app.store, queues=effective.queues, clock=clock
        )

        async def run() -> int:
            async with probes:
                return await run_fleet(
                    lambda: start(command),
                    scaler.wanted,
                    shutdown_timeout_s=effective.shutdown_timeout_us / SECOND_US,
                    clock=clock,
                )

        return asyncio.run(run())


def bounded_rules(
    queues: tuple[str, ...], declared: Mapping[str, ScaleRule], chosen: Bounds
) -> dict[str, ScaleRule]:
    """Return the scaling rule per queue: its own thresholds within the bounds given here.

    A queue whose autoscale is switched off has none.
    """
    rules = {}
    for name in queues:
        own = declared.get(name, ScaleRule(enabled=True))
        if not own.enabled:
            continue
        rules[name] = ScaleRule(
            enabled=True,
            min_workers=chosen[0],
            max_workers=chosen[1],
            scale_up=own.scale_up,
            scale_down=own.scale_down,
        )
        try:
            check_scale(rules[name])
        except ConfigError as error:
            raise ConfigError(f"queue {name!r}: {error}") from None
    return rules


class Scaler:
    """Ask the store how many workers there should be."""

    def __init__(
        self,
        store: Store,
        rules: Mapping[str, ScaleRule],
        *,
        least: int,
        slots: int,
        clock: Clock,
    ) -> None:
        self._store = store
        self._rules = rules
        self._slots = slots
        self._clock = clock
        self._before: QueueSnapshot | None = None
        self._wish = Scaling(least, clock.now_us())
        self._unreachable = False

    def wanted(self) -> int:
        """Return the number of workers wanted; the last one while the store cannot be asked."""
        try:
            counts = self._store.run(self._store.inspection.counts())
        except StoreError as error:
            if not self._unreachable:
                _LOG.warning("the store cannot be asked how much there is to do: %s", error)
            self._unreachable = True
            return self._wish.workers
        self._unreachable = False
        now = snapshot(counts, self._rules, self._clock.monotonic())
        asked = loads(self._before, now, slots=self._slots)
        self._before = now
        self._wish = next_scaling(self._rules, asked, self._wish, self._clock.now_us())
        return self._wish.workers


class Process(Protocol):
    """The part of `subprocess.Popen` that is used here."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def send_signal(self, sig: int, /) -> None: ...


def start_process(command: Sequence[str]) -> Process:
    """Start a worker in its own session: Ctrl-C reaches it through this parent only."""
    return subprocess.Popen(command, start_new_session=True)  # noqa: S603 - this program


@dataclass(slots=True)
class _Child:
    process: Process
    started_s: float
    signals: int = 0  #: how many it has been sent
    retiring: bool = False


class Fleet:
    """The worker processes, and the signals they were sent."""

    def __init__(self, start: Callable[[], Process], clock: Clock) -> None:
        self._start = start
        self._clock = clock
        self._children: list[_Child] = []
        self._received: list[int] = []
        self._stopping_s: float | None = None
        self.quiet = False  #: no process claims, and none is started
        self.exit_code = int(ExitCode.OK)

    @property
    def empty(self) -> bool:
        """Whether no process is left."""
        return not self._children

    @property
    def stopping(self) -> bool:
        """Whether the whole fleet is stopping."""
        return self._stopping_s is not None

    @property
    def working(self) -> int:
        """The number of processes that were not asked to stop."""
        return sum(not child.retiring for child in self._children)

    def stop(self, *signals: int) -> None:
        """Stop all processes; a second signal gives back their jobs, a third leaves."""
        self._received += signals
        if self._stopping_s is None:
            self._stopping_s = self._clock.monotonic()

    def forward(self, number: int) -> None:
        """Forward SIGUSR1 (stop claiming) or SIGUSR2 (go on) to all processes."""
        self.quiet = number == signal.SIGUSR1
        for child in self._children:
            child.process.send_signal(number)

    def resize(self, wanted: int) -> None:
        """Start processes until there are `wanted`, or stop the youngest."""
        if self.stopping or self.quiet:  # a signal may have said so meanwhile
            return
        if self.working != wanted:
            _LOG.info("worker processes: %s running, %s wanted", self.working, wanted)
        while self.working < wanted:
            self._children.append(_Child(self._start(), self._clock.monotonic()))
        # In the order they were started, so the youngest are the ones too many.
        for child in [child for child in self._children if not child.retiring][wanted:]:
            child.retiring = True
            self._signal(child, _STOP)

    def keep_time(self, shutdown_timeout_s: float) -> None:
        """Forward stop signals, and send a second one when the shutdown timeout has passed."""
        if self._stopping_s is None:
            return
        late = self._clock.monotonic() - self._stopping_s >= shutdown_timeout_s
        asked = max(len(self._received), _STOP, _HURRY if late else 0)
        for child in self._children:
            self._signal(child, asked)

    def reap(self) -> None:
        """Remove processes that have ended."""
        for child in list(self._children):
            status = child.process.poll()
            if status is not None:
                self._children.remove(child)
                self._note_end(child, status)

    def _signal(self, child: _Child, signals: int) -> None:
        """Send the signals a process has not had yet; a retiring one has had the first."""
        for index in range(child.signals, signals):
            received = self._received[index : index + 1]
            child.process.send_signal(received[0] if received else signal.SIGTERM)
        child.signals = max(child.signals, signals)

    def _note_end(self, child: _Child, status: int) -> None:
        pid, code = child.process.pid, status if status >= 0 else int(ExitCode.FAILED)
        if child.signals:
            # Dying of the signal, or giving back jobs at our request, is no failure.
            hurried = status in _HURRIED and len(self._received) < _HURRY
            if -status not in STOP_SIGNALS and not hurried:
                self.exit_code = max(self.exit_code, code)
            return
        how = f"exit code {status}" if status >= 0 else f"signal {-status}"
        if code and self._clock.monotonic() - child.started_s < _FAILED_AT_ONCE_S:
            _LOG.error("worker process %s ended with %s as soon as it had begun; leaving", pid, how)
            self.exit_code = max(self.exit_code, code)
            self.stop()
        elif not self.stopping:
            _LOG.warning("worker process %s ended with %s; another one takes its place", pid, how)


async def run_fleet(
    start: Callable[[], Process],
    wanted: Callable[[], int],
    *,
    shutdown_timeout_s: float,
    clock: Clock,
) -> int:
    """Keep as many processes as are wanted until told to stop; return the exit code."""
    fleet, changed = Fleet(start, clock), asyncio.Event()
    _handle_signals(fleet, changed)
    while not (fleet.stopping and fleet.empty):
        if not (fleet.stopping or fleet.quiet):
            fleet.resize(await asyncio.to_thread(wanted))
        fleet.keep_time(shutdown_timeout_s)
        with suppress(TimeoutError):
            await asyncio.wait_for(changed.wait(), _LOOK_S)
        changed.clear()
        fleet.reap()
    return fleet.exit_code


def _handle_signals(fleet: Fleet, changed: asyncio.Event) -> None:
    """Let signals change the fleet while this event loop runs."""
    loop = asyncio.get_running_loop()

    def handle(number: int, change: Callable[[int], None]) -> None:
        change(number)
        changed.set()

    for number in stop_signals():
        loop.add_signal_handler(number, handle, number, fleet.stop)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        loop.add_signal_handler(number, handle, number, fleet.forward)
    loop.add_signal_handler(signal.SIGCHLD, changed.set)
