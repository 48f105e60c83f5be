# SPDX-License-Identifier: MIT
"""The parent of worker processes: it starts, watches, replaces and stops them.

    slot: empty ──start──▶ process ──dies──▶ its jobs are recovered ──back-off──▶ empty
                              ├─asks to be replaced──▶ it drains beside its successor
                              └─has finished──▶ closed: nothing was left to do

It imports no user code; the first process tells it what it needs to know of the app.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from packhorse.core.clock import SECOND_US, Chance, Clock
from packhorse.runtime.supervisor.child_process import ChildProcess, Death, ProcessSlot
from packhorse.runtime.supervisor.crash_recovery import Cause, CrashRecovery
from packhorse.runtime.supervisor.liveness import (
    ProcessState,
    is_alive,
    stuck_since,
)
from packhorse.runtime.supervisor.messages import Hello, NoSuspects, Quiet, Report
from packhorse.runtime.supervisor.posix import STOP_SIGNALS, Orphans, stop_signals
from packhorse.runtime.supervisor.store_client import LeaseKeeper, StoreClient

_LOG: Final = logging.getLogger("packhorse.supervisor")

EXIT_FAILED: Final = 1
EXIT_ABANDONED: Final = 8
_EXITS_TOLD: Final = range(2, 6)  #: the process itself has said what is wrong
#: How often processes are checked; more often if the lease is short.
_LOOK_S: Final = 1.0
_LOOKS_PER_LEASE: Final = 6
#: After a longer gap between two checks the supervisor was stopped or starved itself.
_AWAY_S: Final = 3.0
#: How long an aborted process may take to write its stacks.
_DUMP_S: Final = 1.0
#: How long a process may take for its last writes before it is killed.
_PARTING_S: Final = 12.0
#: The same after a third signal.
_LEAVING_S: Final = 3.0
#: How long the supervisor waits for the recovery of jobs when it stops itself.
_LAST_WRITES_S: Final = 5.0
_HURRY, _LEAVE = 2, 3
#: Exit codes above this name a signal.
_SIGNALLED: Final = 128
#: What the first, second and third signal do.
_PHASES: Final = ("stopping", "giving running jobs back", "leaving at once")


class Supervisor:
    """Run a number of worker processes."""

    def __init__(
        self,
        command: Callable[[bool], Sequence[str]],
        processes: int,
        *,
        clock: Clock,
        chance: Chance,
    ) -> None:
        self.slots = [ProcessSlot(number) for number in range(processes)]
        self.leaving: list[ChildProcess] = []  #: drain beside their successors
        self.hello: Hello | None = None  #: of the first process that spoke
        self.past = Report()  #: what processes that are gone have done, added up
        self.stopping_at: float | None = None
        self.watched_since = 0.0
        self._command = command
        self.clock = clock
        self.store_client: StoreClient | None = None  #: once a process has named the store
        self._keepers: dict[ChildProcess, LeaseKeeper] = {}
        self._condemned: dict[ChildProcess, Cause] = {}
        self._received: list[tuple[int, float]] = []
        self._codes: list[int] = []
        self.recovery = CrashRecovery(chance)  #: of the jobs of processes that died
        self._orphans = Orphans()
        self._changed = asyncio.Event()
        self._looked_at = 0.0
        self._first = True

    # ------------------------------------------------------------------------------ from outside

    @property
    def children(self) -> list[ChildProcess]:
        """Every living process."""
        seated = [slot.child for slot in self.slots if slot.child is not None]
        return [*seated, *self.leaving]

    @property
    def quiet(self) -> bool:
        """Whether claiming is paused in every slot."""
        return all(slot.quiet for slot in self.slots)

    def state_of(self, child: ChildProcess) -> ProcessState:
        """Return what is known of a process now."""
        grace_us = child.hello.stop_grace_us if child.hello is not None else 5 * SECOND_US
        return ProcessState(
            now=self.clock.monotonic(),
            watched_since=self.watched_since,
            turned_at=child.memory.turned_at,
            running=child.memory.running(),
            culprit=child.memory.culprit,
            grace_s=grace_us / SECOND_US,
        )

    @property
    def alive(self) -> bool:
        """Whether every process is alive; asks no store."""
        return all(is_alive(self.state_of(child)) for child in self.children)

    def renewals(self, child: ChildProcess) -> int:
        """Return how often the supervisor renewed the lease of a process."""
        keeper = self._keepers.get(child)
        return 0 if keeper is None else keeper.renewals

    def stop(self, number: int) -> None:
        """Stop; on the second call give jobs back, on the third leave at once."""
        now = self.clock.monotonic()
        word = _PHASES[min(len(self._received), len(_PHASES) - 1)]
        _LOG.info("%s (%s)", word, signal.Signals(number).name)
        self._received.append((number, now))
        if self.stopping_at is None:
            self.stopping_at = now
        self._changed.set()

    def set_quiet(self, *, on: bool) -> None:
        """Pause claiming in every process, or go on."""
        for slot in self.slots:
            slot.quiet = on
        for child in self.children:
            child.tell(Quiet(on))
        _LOG.info("quiet: no more jobs are claimed" if on else "jobs are claimed again")

    def replace_all(self, reason: str) -> None:
        """Replace every process; the old ones finish their jobs."""
        for slot in self.slots:
            slot.start_at, slot.quick_deaths = 0.0, 0
            if slot.child is not None:
                slot.child.told += 1
                slot.child.signal(signal.SIGTERM)
                self._retired(slot, slot.child, reason)
        self._changed.set()

    # ---------------------------------------------------------------------------------- running

    async def run(self) -> int:
        """Work until told to stop, or until every process has finished; return the exit code."""
        loop = asyncio.get_running_loop()
        with self._signals(loop):
            while True:
                self._look()
                if not self.children and (self.stopping_at is not None or self._all_closed):
                    break
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), self._look_s())
            await self.recovery.ended(_LAST_WRITES_S)
            await self._orphans.ended(self._changed)
        if self.store_client is not None:
            self.store_client.close()
        return self._exit_code()

    @contextlib.contextmanager
    def _signals(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        calls: dict[int, Callable[[], None]] = {
            **{number: partial(self.stop, number) for number in stop_signals()},
            signal.SIGUSR1: lambda: self.set_quiet(on=True),
            signal.SIGUSR2: lambda: self.set_quiet(on=False),
            signal.SIGCHLD: self._changed.set,
        }
        for number, call in calls.items():
            loop.add_signal_handler(number, call)
        try:
            yield
        finally:
            for number in calls:
                loop.remove_signal_handler(number)

    @property
    def _all_closed(self) -> bool:
        return all(slot.closed for slot in self.slots)

    def _look_s(self) -> float:
        waits = [_LOOK_S]
        if self.hello is not None:
            waits.append(self.hello.lease_us / SECOND_US / _LOOKS_PER_LEASE)
        now = self.clock.monotonic()
        waits += [slot.start_at - now for slot in self.slots if slot.start_at > now]
        return max(0.0, min(waits))

    def _look(self) -> None:
        now = self.clock.monotonic()
        if now - self._looked_at > _AWAY_S:
            self.watched_since = now
        self._looked_at = now
        for child in self.children:
            self._hear(child)
        for child in self.children:
            death = child.reap(now)
            if death is not None:
                self._ended(child, death)
        self._orphans.end([child.pid for child in self.children])
        self._start_due(now)
        self._hand_on(now)
        for child in self.children:
            self._watch(child)

    def _start_due(self, now: float) -> None:
        for slot in self.slots:
            free = slot.child is None and not slot.closed
            if not free or self.stopping_at is not None or now < slot.start_at:
                continue
            try:
                self._start(slot, now)
            except OSError as error:  # the others work on
                wait_s = slot.wait_s(0.0, begun=False)
                slot.start_at = now + wait_s
                told = "no process can be started for now (%s); the next try is in %.1f s"
                _LOG.error(told, error, wait_s)

    def _start(self, slot: ProcessSlot, now: float) -> None:
        child = ChildProcess(self._command(self._first))
        child.started_at = now
        if slot.quiet:  # before it can claim anything
            child.tell(Quiet(True))
        if any(not other.closed for other in self.slots[: slot.number]):
            child.tell(NoSuspects())  # the process of the first open slot runs them
        self._first = False
        slot.child = child
        asyncio.get_running_loop().add_reader(child.reading, self._changed.set)

    def _hear(self, child: ChildProcess) -> None:
        for message in child.hear():
            if isinstance(message, Hello):
                self._greeted(child, message)
        if child.silent:
            asyncio.get_running_loop().remove_reader(child.reading)
        slot = next((slot for slot in self.slots if slot.child is child), None)
        if slot is not None:
            slot.quiet = child.quiet
            if child.retire is not None:
                self._retired(slot, child, child.retire)

    def _greeted(self, child: ChildProcess, hello: Hello) -> None:
        self.hello = self.hello or hello
        client = self._client_for(hello)
        if client is not None:
            self._keepers[child] = LeaseKeeper(child, hello, client, self.clock)

    def _client_for(self, hello: Hello) -> StoreClient | None:
        """Return the store client; None if the store lives inside the process."""
        if self.store_client is None and hello.url is not None:
            self.store_client = StoreClient(hello.url)
            self.store_client.prepare()
        return None if hello.url is None else self.store_client

    def _retired(self, slot: ProcessSlot, child: ChildProcess, reason: str) -> None:
        _LOG.warning("process %s is replaced: %s", child.pid, reason)
        child.told = max(child.told, 1)  # it drains already
        self.leaving.append(child)
        slot.child = None
        slot.restarts += 1
        # At once, unless processes die early one after the other.
        now = self.clock.monotonic()
        slot.start_at = now + slot.wait_s(now - child.started_at, begun=True)

    # --------------------------------------------------------------------------------- watching

    def _watch(self, child: ChildProcess) -> None:
        keeper = self._keepers.get(child)
        if keeper is not None:
            keeper.look()
        if child in self._condemned:
            return
        since = stuck_since(self.state_of(child))
        if since is not None:
            late_s = self.clock.monotonic() - since
            _LOG.error(
                "process %s is stuck: its event loop has not turned, and a job that ran in it "
                "should have ended %.1f s ago; it is killed",
                *(child.pid, late_s),
            )
            self._condemned[child] = Cause.STUCK
            child.abort()
            asyncio.get_running_loop().call_later(_DUMP_S, child.signal, signal.SIGKILL)

    def _hand_on(self, now: float) -> None:
        """Forward stop signals, and kill processes that take too long to stop."""
        if self.stopping_at is None:
            return
        for child in self.children:
            for number, _ in self._received[child.told :]:
                child.signal(number)
                child.told += 1
            timeout_s, grace_s = self._patience_s(child)
            patient = child.retire is not None and child.told == 1
            if patient and now - self.stopping_at >= timeout_s:
                # A process that asked to be replaced drains without a limit of its own.
                child.told += 1
                child.signal(signal.SIGTERM)
            if now >= self._kill_at(timeout_s, grace_s) and child not in self._condemned:
                _LOG.error("process %s did not stop in time; it is killed", child.pid)
                self._condemned[child] = Cause.SHUTDOWN
                child.signal(signal.SIGKILL)

    def _patience_s(self, child: ChildProcess) -> tuple[float, float]:
        hello = child.hello
        if hello is None:
            return 0.0, 0.0
        return hello.shutdown_timeout_us / SECOND_US, hello.stop_grace_us / SECOND_US

    def _kill_at(self, timeout_s: float, grace_s: float) -> float:
        times = [at for _, at in self._received]
        kill_at = times[0] + timeout_s + grace_s + _PARTING_S
        if len(times) >= _HURRY:
            kill_at = min(kill_at, times[_HURRY - 1] + grace_s + _PARTING_S)
        if len(times) >= _LEAVE:
            kill_at = min(kill_at, times[_LEAVE - 1] + _LEAVING_S)
        return kill_at

    # ------------------------------------------------------------------------------------- ends

    def _ended(self, child: ChildProcess, death: Death) -> None:
        asyncio.get_running_loop().remove_reader(child.reading)
        child.close()
        self._orphans.died(child.pid)
        slot = next((slot for slot in self.slots if slot.child is child), None)
        if child in self.leaving:
            self.leaving.remove(child)
        self._keepers.pop(child, None)
        cause = self._condemned.pop(child, None)
        self.past = child.report.after(self.past)
        if child.hello is not None and not child.left:
            self.recovery.begin(
                self._client_for(child.hello), child.hello, death, cause or self._cause(death)
            )
        if child.told or self.stopping_at is not None:
            self._codes.append(self._code_when_asked(child, death, cause))
        elif slot is not None:
            self._ended_unasked(slot, child, death, cause)
        if slot is not None:
            slot.child, slot.quiet = None, child.quiet

    def _cause(self, death: Death) -> Cause:
        """Return the cause of a death; a kill during shutdown is no crash."""
        killed = death.signal == signal.SIGKILL and self.stopping_at is not None
        return Cause.SHUTDOWN if killed else Cause.CRASH

    def _code_when_asked(self, child: ChildProcess, death: Death, cause: Cause | None) -> int:
        if self.stopping_at is None:
            return 0  # it was being replaced, and work goes on
        if cause is Cause.SHUTDOWN:
            return EXIT_ABANDONED
        if death.signal is None:
            hurried = death.exit_code == _SIGNALLED + signal.SIGTERM
            # The supervisor's own second signal to a draining process is no failure.
            return 0 if hurried and len(self._received) < _HURRY else death.exit_code or 0
        # A process that does not handle signals yet dies of the stop signal.
        told = death.signal in STOP_SIGNALS and child.told > 0
        return 0 if told else EXIT_FAILED

    def _ended_unasked(
        self, slot: ProcessSlot, child: ChildProcess, death: Death, cause: Cause | None
    ) -> None:
        if death.exit_code == 0 and child.finished:
            slot.closed = True
            return
        if self.hello is None and death.exit_code is not None:
            # The first process could not begin, and the next one would not either.
            if death.exit_code not in _EXITS_TOLD:
                _LOG.error("process %s ended before it had begun: %s", child.pid, death.evidence)
            self._codes.append(death.exit_code or EXIT_FAILED)
            self.stopping_at = death.at
            self._received.append((signal.SIGTERM, death.at))
            return
        slot.restarts += 1
        wait_s = slot.wait_s(death.at - child.started_at, begun=child.hello is not None)
        slot.start_at = death.at + wait_s
        how = "was killed: it was stuck" if cause else f"ended by itself ({death.evidence})"
        _LOG.error("process %s %s; another one takes its place in %.1f s", child.pid, how, wait_s)

    def _exit_code(self) -> int:
        if EXIT_ABANDONED in self._codes:
            return EXIT_ABANDONED
        return max(self._codes, default=0)
