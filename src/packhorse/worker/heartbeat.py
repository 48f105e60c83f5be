# SPDX-License-Identifier: MIT
"""Keeps the worker's lease alive from a thread of its own, so that a blocked loop does not cost it.

Every third of a lease it renews, telling what the worker holds when no claim is under way; every
second it asks which held jobs are to be cancelled, and whether the event loop still turns. When a
renewal shows that the store's clock was set forward, another one has the limits of what is held
moved along. Store calls are the sync ones; what it finds out is handed to the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from packhorse.clock import SECOND_US, Chance, Clock
from packhorse.policies.lease import ClockReading, renew_interval_us, stepped_us
from packhorse.stores.protocol import Store
from packhorse.stores.requests import Renewal, Renewed
from packhorse.supervisor.page import Page
from packhorse.worker.lease import ClaimGate, OwnLease
from packhorse.worker.slots import Slots
from packhorse.worker.trouble import Backoff

__all__ = ["Heartbeat", "HeartbeatCalls"]

#: The longest a wish to cancel goes unheard when its wake-up is lost.
_LOOK_S: Final = 1.0
#: Between two looks however many wake-ups come.
_LOOK_S_MIN: Final = 0.02
#: An event loop that has not turned for so long is blocked by some handler.
_BLOCKED_S: Final = 2.0
#: How long to wait for the thread when the worker ends; a store call may be under way in it.
_JOIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class HeartbeatCalls:
    """Whom the heartbeat tells what; all on the event loop, save `blocked` and `beat`."""

    renewed: Callable[[], None]
    cancelled: Callable[[Sequence[str]], None]
    lease_lost: Callable[[], None]
    lease_regained: Callable[[], None]
    failed: Callable[[str, BaseException], None]
    worked: Callable[[str], None]
    blocked: Callable[[float], None]
    beat: Callable[[], None] = lambda: None  #: every second, in the heartbeat's own thread


class Heartbeat:
    """One thread; `run_once` is its body, and says how long to rest."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        chance: Chance,
        *,
        renewal: Renewal,
        slots: Slots,
        calls: HeartbeatCalls,
        page: Page | None = None,
    ) -> None:
        self.lease = OwnLease(clock, renewal.lease_us, page)
        self._page = page
        self.gate = ClaimGate()
        #: A claim's answer was lost: nothing may be claimed until the store was told what is held.
        self.must_tell = False
        self._store = store
        self._monotonic = clock.monotonic
        self._renewal = renewal
        self._slots = slots
        self._calls = calls
        self._interval_s = renew_interval_us(renewal.lease_us) / SECOND_US
        self._backoff = Backoff(chance, longest_s=self._interval_s)
        self._loop = asyncio.get_running_loop()
        self._wake = threading.Event()
        self._stopping = False
        self._lost = True  # there is none yet
        self._begun = False
        self._renew_at = self._look_at = self._looked_at = float("-inf")
        self._unanswered = False  # which jobs are to be cancelled
        self._asked_loop_at: float | None = None
        self._told_blocked = False
        self._epoch = self.lease.epoch
        self._reading: ClockReading | None = None
        self._step_us = 0  # by how much the store's clock was set forward, until it is told so
        self._thread = threading.Thread(target=self._run, name="packhorse-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """Beat no more. Blocks until a store call under way in the thread has ended, or 5 s."""
        self._stopping = True
        self._wake.set()
        self._thread.join(_JOIN_S)

    @property
    def loop_blocked(self) -> bool:
        """Whether the event loop has not turned for long."""
        return self._told_blocked

    def must_renew(self) -> None:
        """The store says that there is no lease, whatever this worker believes."""
        self.lease.distrust()
        self.renew_now()

    def renew_now(self) -> None:
        """Renew without waiting for the next third of the lease."""
        self._renew_at = float("-inf")
        self._wake.set()

    def look_now(self) -> None:
        """Somebody may want a job cancelled: ask which."""
        self._look_at = min(self._look_at, self._looked_at + _LOOK_S_MIN)
        self._wake.set()

    def run_once(self) -> float:
        """Do what is due, and say how many seconds nothing will be."""
        if self._monotonic() >= self._renew_at:
            self._renew()
        if self._monotonic() >= self._look_at:
            self._looked_at = self._monotonic()
            self._look_at = self._looked_at + _LOOK_S
            self._look_for_cancelled()
            self._look_at_expiry()
            self._look_at_loop()
            self._calls.beat()
        self._look_at_lease()
        until_s = min(self._renew_at, self._look_at) - self._monotonic()
        return max(0.0, until_s if self._lost else min(until_s, self.lease.left_s))

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            wait_s = self.run_once()
            if not self._stopping:
                self._wake.wait(wait_s)

    def _renew(self) -> None:
        through = self.gate.enter()
        must_tell = self.must_tell
        asked_at = self._monotonic()
        try:
            held = self._slots.held_fences() if through else None
            renewal = msgspec.structs.replace(
                self._renewal, running=self._slots.running, held=held, step_us=self._step_us
            )
            renewed = self._store.run(self._store.leases.renew(renewal))
        except Exception as error:  # noqa: BLE001 - tried again until the worker ends
            self._renew_at = self._monotonic() + self._backoff.next_s()
            self._post(self._calls.failed, "renew", error)
        else:
            self._renew_at = asked_at + self._interval_s
            if must_tell and not through:  # a claim was in the way
                self._renew_at = asked_at + _LOOK_S_MIN
            self._step_us = 0
            self._granted(asked_at, renewed, told=through and must_tell)
            self._read_clock(ClockReading(renewed.now_us, asked_at, self._monotonic()))
        finally:
            if through:
                self.gate.leave()
        self._post(self._calls.renewed)

    def _granted(self, asked_at: float, renewed: Renewed, *, told: bool) -> None:
        self._backoff.reset()
        self.lease.renewed(asked_at, lapsed=renewed.lapsed and self._begun)
        if told:
            self.must_tell = False
        self._post(self._calls.worked, "renew")
        lapsed = self.lease.epoch != self._epoch
        self._epoch = self.lease.epoch
        if self._begun and (lapsed and not self._lost):
            self._post(self._calls.lease_lost)
            self._lost = True
        if self._begun and self._lost:
            self._post(self._calls.lease_regained)
        self._begun, self._lost = True, False

    def _read_clock(self, reading: ClockReading) -> None:
        """A store whose clock was set forward would take what is held for held too long."""
        before, self._reading = self._reading, reading
        step_us = 0 if before is None else stepped_us(before, reading)
        if step_us > 0 and self._slots.held:
            self._step_us = step_us
            self._renew_at = float("-inf")

    def _look_at_expiry(self) -> None:
        """Find an expired lease oneself while the rescuer cannot, whose event loop is blocked."""
        if self._asked_loop_at is None or not self._slots.held:
            return
        with contextlib.suppress(Exception):  # asked again in a second
            look = self._store.run(self._store.leases.expired())
            if any(lease.worker == self._renewal.worker for lease in look.leases):
                self._renew_at = float("-inf")

    def _look_for_cancelled(self) -> None:
        if not self._slots.held:
            self._cancelled_answered()  # or need not be
            return
        try:
            cancelled = self._store.run(self._store.leases.cancelled(self._renewal.worker))
        except Exception as error:  # noqa: BLE001 - asked again in a second
            self._unanswered = True
            self._post(self._calls.failed, "cancelled", error)
            return
        self._cancelled_answered()
        if cancelled:
            self._post(self._calls.cancelled, cancelled)

    def _cancelled_answered(self) -> None:
        if self._unanswered:
            self._unanswered = False
            self._post(self._calls.worked, "cancelled")

    def _look_at_lease(self) -> None:
        if not self._begun:
            return
        trusted = self.lease.trusted
        if not self._lost and not trusted:
            self._lost = True
            self._post(self._calls.lease_lost)
        elif self.lease.epoch != self._epoch:  # the supervisor found it gone, and renewed it
            self._renew_at = float("-inf")

    def _look_at_loop(self) -> None:
        """Ask the event loop for a sign; tell once when it gives none for long."""
        now = self._monotonic()
        if self._asked_loop_at is None:
            self._asked_loop_at = now
            self._post(self._loop_turned)
        elif now - self._asked_loop_at >= _BLOCKED_S and not self._told_blocked:
            self._told_blocked = True
            self._calls.blocked(now - self._asked_loop_at)

    def _loop_turned(self) -> None:
        if self._page is not None:
            if self._told_blocked:
                self._page.blocked_by(None)
            self._page.loop_turned(self._monotonic())
        self._asked_loop_at = None
        self._told_blocked = False

    def _post(self, call: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(call, *arguments)
