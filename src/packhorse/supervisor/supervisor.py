# SPDX-License-Identifier: MIT
"""The parent of worker processes: starts them, watches them, replaces them, and stops with them.

    seat: empty ──start──▶ process ──dies──▶ its jobs are settled ──back-off──▶ empty
                              ├─asks to be replaced──▶ it drains beside its successor
                              └─ends by itself with 0──▶ closed: nothing was left to do

It imports no user code. What it must know of the app the first process tells it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from packhorse.clock import SECOND_US, Chance, Clock
from packhorse.supervisor.aftermath import Cause
from packhorse.supervisor.burials import Burials
from packhorse.supervisor.desk import StoreDesk
from packhorse.supervisor.judge import Sight, is_alive, restart_delay_s, stuck_since
from packhorse.supervisor.keeper import LeaseKeeper
from packhorse.supervisor.messages import Hello, Quiet, Report
from packhorse.supervisor.process import ChildProcess, Death, reap_strangers
from packhorse.supervisor.seats import Seat

__all__ = ["EXIT_ABANDONED", "EXIT_FAILED", "Supervisor"]

_LOG: Final = logging.getLogger("packhorse.supervisor")

EXIT_FAILED: Final = 1
EXIT_ABANDONED: Final = 8
#: Between two looks at the processes; a short lease is looked at more often.
_LOOK_S: Final = 1.0
_LOOKS_PER_LEASE: Final = 6
#: After a gap this long between two looks the supervisor was away itself.
_AWAY_S: Final = 3.0
#: A process that lived this long did not die as soon as it had begun.
_LONG_LIFE_S: Final = 10.0
#: How long a process that is to die may take to write down where it is.
_DUMP_S: Final = 1.0
#: Beyond what a process may take to stop, before it is killed: its last writes take some seconds.
_PARTING_S: Final = 12.0
#: The same after a third signal.
_LEAVING_S: Final = 3.0
#: How long the supervisor waits for dead processes' jobs to be settled when it leaves itself.
_LAST_WRITES_S: Final = 5.0
_HURRY, _LEAVE = 2, 3
#: Exit codes above this name a signal.
_SIGNALLED: Final = 128
#: What the first, second and third signal do.
_PHASES: Final = ("stopping", "hurrying", "leaving")


class Supervisor:
    """Runs as many worker processes as it is told to."""

    def __init__(
        self,
        command: Callable[[bool], Sequence[str]],
        processes: int,
        *,
        clock: Clock,
        chance: Chance,
    ) -> None:
        self.seats = [Seat(number) for number in range(processes)]
        self.leaving: list[ChildProcess] = []  #: drain beside their successors
        self.hello: Hello | None = None  #: of the first process that spoke
        self.past = Report()  #: what processes that are gone have done, added up
        self.stopping_at: float | None = None
        self.watched_since = 0.0
        self._command = command
        self._clock = clock
        self._desk: StoreDesk | None = None
        self._keepers: dict[ChildProcess, LeaseKeeper] = {}
        self._condemned: dict[ChildProcess, Cause] = {}
        self._received: list[tuple[int, float]] = []
        self._codes: list[int] = []
        self._burials = Burials(chance)
        self._changed = asyncio.Event()
        self._looked_at = 0.0
        self._first = True

    # ------------------------------------------------------------------------------ from outside

    @property
    def children(self) -> list[ChildProcess]:
        """Every process that lives."""
        seated = [seat.child for seat in self.seats if seat.child is not None]
        return [*seated, *self.leaving]

    @property
    def quiet(self) -> bool:
        """Whether nobody is to claim anything."""
        return all(seat.quiet for seat in self.seats)

    @property
    def desk(self) -> StoreDesk | None:
        """The way to the store, once a process has said which one it is."""
        return self._desk

    def sight(self, child: ChildProcess) -> Sight:
        """What is seen of a process now."""
        grace_us = child.hello.stop_grace_us if child.hello is not None else 5 * SECOND_US
        return Sight(
            now=self._clock.monotonic(),
            watched_since=self.watched_since,
            turned_at=child.page.turned_at,
            running=child.page.running(),
            culprit=child.page.culprit,
            grace_s=grace_us / SECOND_US,
        )

    @property
    def alive(self) -> bool:
        """Whether every process is; asks no store."""
        return all(is_alive(self.sight(child)) for child in self.children)

    def renewals(self, child: ChildProcess) -> int:
        """How often the lease of a process had to be kept for it."""
        keeper = self._keepers.get(child)
        return 0 if keeper is None else keeper.renewals

    def stop(self, number: int) -> None:
        """Stop; asked again, hurry; asked a third time, leave."""
        now = self._clock.monotonic()
        word = _PHASES[min(len(self._received), len(_PHASES) - 1)]
        _LOG.info("%s (%s)", word, signal.Signals(number).name)
        self._received.append((number, now))
        if self.stopping_at is None:
            self.stopping_at = now
        self._changed.set()

    def set_quiet(self, *, on: bool) -> None:
        """Have every process stop claiming, or go on."""
        for seat in self.seats:
            seat.quiet = on
        for child in self.children:
            child.tell(Quiet(on))
        _LOG.info("quiet: no more jobs are claimed" if on else "jobs are claimed again")

    def replace_all(self, reason: str) -> None:
        """Start every process anew; the old ones finish what they run."""
        for seat in self.seats:
            seat.start_at, seat.quick_deaths = 0.0, 0
            if seat.child is not None:
                seat.child.told += 1
                seat.child.signal(signal.SIGTERM)
                self._retired(seat, seat.child, reason)
        self._changed.set()

    # ---------------------------------------------------------------------------------- running

    async def run(self) -> int:
        """Work until told to stop, or until no process has anything left to do; the exit code."""
        loop = asyncio.get_running_loop()
        with self._signals(loop):
            while True:
                self._look()
                if not self.children and (self.stopping_at is not None or self._all_closed):
                    break
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), self._look_s())
            await self._burials.ended(_LAST_WRITES_S)
        if self._desk is not None:
            self._desk.close()
        return self._exit_code()

    @contextlib.contextmanager
    def _signals(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        calls: dict[int, Callable[[], None]] = {
            signal.SIGTERM: lambda: self.stop(signal.SIGTERM),
            signal.SIGINT: lambda: self.stop(signal.SIGINT),
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
        return all(seat.closed for seat in self.seats)

    def _look_s(self) -> float:
        waits = [_LOOK_S]
        if self.hello is not None:
            waits.append(self.hello.lease_us / SECOND_US / _LOOKS_PER_LEASE)
        now = self._clock.monotonic()
        waits += [seat.start_at - now for seat in self.seats if seat.start_at > now]
        return max(0.0, min(waits))

    def _look(self) -> None:
        now = self._clock.monotonic()
        if now - self._looked_at > _AWAY_S:
            self.watched_since = now
        self._looked_at = now
        for child in self.children:
            self._hear(child)
        for child in self.children:
            death = child.reap(now)
            if death is not None:
                self._ended(child, death)
        reap_strangers([child.pid for child in self.children])
        self._start_due(now)
        self._hand_on(now)
        for child in self.children:
            self._watch(child)

    def _start_due(self, now: float) -> None:
        for seat in self.seats:
            free = seat.child is None and not seat.closed
            if free and self.stopping_at is None and now >= seat.start_at:
                self._start(seat, now)

    def _start(self, seat: Seat, now: float) -> None:
        child = ChildProcess(self._command(self._first))
        child.started_at = now
        if seat.quiet:  # in its pipe before it can claim anything
            child.tell(Quiet(True))
        self._first = False
        seat.child = child
        asyncio.get_running_loop().add_reader(child.reading, self._changed.set)

    def _hear(self, child: ChildProcess) -> None:
        for message in child.hear():
            if isinstance(message, Hello):
                self._greeted(child, message)
        if child.silent:
            asyncio.get_running_loop().remove_reader(child.reading)
        seat = next((seat for seat in self.seats if seat.child is child), None)
        if seat is not None:
            seat.quiet = child.quiet
            if child.retire is not None:
                self._retired(seat, child, child.retire)

    def _greeted(self, child: ChildProcess, hello: Hello) -> None:
        self.hello = self.hello or hello
        desk = self._desk_for(hello)
        if desk is not None:
            self._keepers[child] = LeaseKeeper(child, hello, desk, self._clock)

    def _desk_for(self, hello: Hello) -> StoreDesk | None:
        """The way to the store; None if it lives inside the process, which keeps its own lease."""
        if self._desk is None and hello.url is not None:
            self._desk = StoreDesk(hello.url)
            self._desk.prepare()
        return None if hello.url is None else self._desk

    def _retired(self, seat: Seat, child: ChildProcess, reason: str) -> None:
        _LOG.warning("process %s is replaced: %s", child.pid, reason)
        child.told = max(child.told, 1)  # it drains already
        self.leaving.append(child)
        seat.child = None
        seat.restarts += 1
        # At once, unless one after the other does not last: then they start ever more slowly.
        now = self._clock.monotonic()
        seat.start_at = now + self._wait_s(seat, now - child.started_at, begun=True)

    # --------------------------------------------------------------------------------- watching

    def _watch(self, child: ChildProcess) -> None:
        keeper = self._keepers.get(child)
        if keeper is not None:
            keeper.look()
        if child in self._condemned:
            return
        since = stuck_since(self.sight(child))
        if since is not None:
            late_s = self._clock.monotonic() - since
            _LOG.error(
                "process %s is stuck: its event loop has not turned, and a job that ran in it "
                "should have ended %.1f s ago; it is killed",
                *(child.pid, late_s),
            )
            self._condemned[child] = Cause.STUCK
            child.abort()
            asyncio.get_running_loop().call_later(_DUMP_S, child.signal, signal.SIGKILL)

    def _hand_on(self, now: float) -> None:
        """Hand on what was received, and kill those that take too long to stop."""
        if self.stopping_at is None:
            return
        for child in self.children:
            for number, _ in self._received[child.told :]:
                child.signal(number)
                child.told += 1
            timeout_s, grace_s = self._patience_s(child)
            patient = child.retire is not None and child.told == 1
            if patient and now - self.stopping_at >= timeout_s:
                # One that asked to be replaced drains without a limit of its own.
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
        seat = next((seat for seat in self.seats if seat.child is child), None)
        if child in self.leaving:
            self.leaving.remove(child)
        self._keepers.pop(child, None)
        cause = self._condemned.pop(child, None)
        self.past = child.report.after(self.past)
        if child.hello is not None and not child.left:
            self._burials.begin(
                self._desk_for(child.hello), child.hello, death, cause or self._cause(death)
            )
        if child.told or self.stopping_at is not None:
            self._codes.append(self._code_when_asked(child, death, cause))
        elif seat is not None:
            self._ended_unasked(seat, child, death, cause)
        if seat is not None:
            seat.child, seat.quiet = None, child.quiet

    def _cause(self, death: Death) -> Cause:
        """A process that is killed while everything stops proves nothing against its jobs."""
        killed = death.signal == signal.SIGKILL and self.stopping_at is not None
        return Cause.SHUTDOWN if killed else Cause.CRASH

    def _code_when_asked(self, child: ChildProcess, death: Death, cause: Cause | None) -> int:
        if self.stopping_at is None:
            return 0  # it was being replaced, and work goes on
        if cause is Cause.SHUTDOWN:
            return EXIT_ABANDONED
        if death.signal is None:
            hurried = death.exit_code == _SIGNALLED + signal.SIGTERM
            # A patient one was hurried by its supervisor alone, which is nobody's second signal.
            return 0 if hurried and len(self._received) < _HURRY else death.exit_code or 0
        # Told before it had begun to listen, it dies of the signal.
        told = death.signal in (signal.SIGTERM, signal.SIGINT) and child.told > 0
        return 0 if told else EXIT_FAILED

    def _ended_unasked(
        self, seat: Seat, child: ChildProcess, death: Death, cause: Cause | None
    ) -> None:
        if death.exit_code == 0:
            seat.closed = True
            return
        if self.hello is None and death.exit_code is not None:
            # It could not even begin, and would not the next time: its own words say why.
            self._codes.append(death.exit_code)
            self.stopping_at = death.at
            self._received.append((signal.SIGTERM, death.at))
            return
        seat.restarts += 1
        wait_s = self._wait_s(seat, death.at - child.started_at, begun=child.hello is not None)
        seat.start_at = death.at + wait_s
        _LOG.error(
            "process %s ended by itself (%s); another one takes its place in %.1f s",
            *(child.pid, "killed, it was stuck" if cause else death.evidence, wait_s),
        )

    def _wait_s(self, seat: Seat, lived_s: float, *, begun: bool) -> float:
        """How long a seat stays empty after a process that lived so long."""
        seat.quick_deaths = 0 if lived_s >= _LONG_LIFE_S else seat.quick_deaths + 1
        return restart_delay_s(seat.quick_deaths, begun=begun)

    def _exit_code(self) -> int:
        if EXIT_ABANDONED in self._codes:
            return EXIT_ABANDONED
        return max(self._codes, default=0)
