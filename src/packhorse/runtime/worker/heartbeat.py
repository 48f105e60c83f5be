# SPDX-License-Identifier: MIT
"""Keep the worker's lease alive from a thread of its own, so that a blocked loop keeps it too.

Every third of a lease it renews, telling what the worker holds when no claim is under way; every
second it asks which held jobs are to be cancelled, and whether the event loop still turns. When a
renewal shows that the store's clock was set forward, another one has the limits of what is held
moved along. Store calls are the sync ones; what it finds out is handed to the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from packhorse.core.clock import SECOND_US, Clock
from packhorse.core.policies.lease import (
    ClockReading,
    read_later_us,
    renew_interval_us,
    stepped_us,
    trusted_for_us,
)
from packhorse.errors import StoreCopied
from packhorse.runtime.supervisor.shared_memory import SharedMemory
from packhorse.runtime.worker.store_health import Backoff
from packhorse.stores.requests import Renewal

if TYPE_CHECKING:
    from packhorse.runtime.worker.base_runtime import Runtime


class WorkerLease:
    """Trusted for nine tenths of its length, counted from when its renewal was asked for.

    `epoch` rises whenever the lease was, or may have been, gone: jobs claimed in an earlier epoch
    may have been given away. A supervisor that has renewed it in this process's stead says so
    in the memory they share.
    """

    def __init__(self, clock: Clock, lease_us: int, memory: SharedMemory | None = None) -> None:
        self._clock = clock
        self._memory = memory
        self._kept_epoch = 0 if memory is None else memory.epoch
        self._ignored = 0.0  # what the memory said when the store knew better
        self._span_s = trusted_for_us(lease_us) / SECOND_US
        self._margin_s = lease_us / SECOND_US - self._span_s
        self.trusted_until = float("-inf")  #: as the clock's `monotonic` counts
        self.epoch = 0

    @property
    def trusted(self) -> bool:
        """Whether the worker may begin new work."""
        now = self._clock.monotonic()
        if now >= self.trusted_until:
            self.look()
        return now < self.trusted_until

    @property
    def left_s(self) -> float:
        """How long it may still be trusted without another renewal."""
        self.look()
        return self.trusted_until - self._clock.monotonic()

    def lost_since(self, epoch: int) -> bool:
        """Whether what was claimed in that epoch may have been given away by now."""
        return not self.trusted or epoch != self.epoch

    def look(self) -> bool:
        """Apply renewals by the supervisor; return whether the lease may have been lost since."""
        memory = self._memory
        if memory is None:
            return False
        # In this order: the supervisor says that it may have lapsed before it says it is renewed.
        kept_until = memory.trusted_until
        epoch = memory.epoch
        gone = epoch != self._kept_epoch
        if gone:
            self._kept_epoch = epoch
            self.epoch += 1
        if kept_until > self._ignored:
            self.trusted_until = max(self.trusted_until, kept_until)
        return gone

    def distrust(self) -> None:
        """Stop trusting the lease: the store does not know it any more.

        That what was claimed under it may be given away is noted at once: the store says it once.
        """
        self.epoch += 1
        if self._memory is not None:
            self._ignored = self._memory.trusted_until
        self.trusted_until = float("-inf")

    def asking(self, now: float) -> None:
        """Distrust the lease if it has run out: the answer that says so may be lost."""
        self.look()
        if math.isfinite(self.trusted_until) and now >= self.trusted_until + self._margin_s:
            self.distrust()

    def renewed(self, asked_at: float) -> None:
        """Trust the lease again: the store granted a renewal requested at `asked_at`."""
        self.look()
        if self._memory is not None:
            self._memory.lease_renewed(asked_at)
        self.trusted_until = max(self.trusted_until, asked_at + self._span_s)


#: The longest delay of a cancel whose wake-up is lost.
_LOOK_S: Final = 1.0
#: How often a renewal tells what is held, unless the answer of a claim was lost: then the next one
#: does, and the store looks at all held jobs for it.
_TELL_S: Final = 60.0
#: Between two looks however many wake-ups come.
_LOOK_S_MIN: Final = 0.02
#: An event loop that has not turned for so long is blocked by some handler.
_BLOCKED_S: Final = 2.0
#: How long to wait for the thread when the worker ends; a store call may be under way in it.
_JOIN_S: Final = 5.0


class Heartbeat:
    """One thread; `run_once` is its body, and says how long to rest.

    It calls the `on_*` methods of its runtime: the last two in its own thread, the others on the
    event loop.
    """

    def __init__(self, runtime: Runtime, renewal: Renewal) -> None:
        env = runtime.env
        self._memory = None if env.link is None else env.link.memory
        self.lease = WorkerLease(env.clock, renewal.lease_us, self._memory)
        #: Keeps claims and told renewals apart, from whichever thread. A renewal that tells what
        #: is held makes the store release the rest: a claim under way at that moment would lose
        #: the jobs it is just being given. The one that comes second does without.
        self.claim_lock = threading.Lock()
        #: A claim's answer was lost: nothing may be claimed until the store was told what is held.
        self.must_tell = False
        #: The jobs were carried to another store, where they run: nothing may be claimed here.
        self.copied = False
        self._tell_at = float("-inf")
        self._store = env.store
        self._declare = env.declare
        self._monotonic = env.clock.monotonic
        self._renewal = renewal
        self._slots = runtime.slots
        self._health = runtime.health
        self._runtime = runtime
        self._interval_s = renew_interval_us(renewal.lease_us) / SECOND_US
        self._backoff = Backoff(env.chance, longest_s=self._interval_s)
        self._loop = asyncio.get_running_loop()
        self._wake = threading.Event()
        self._stopping = False
        self._quiet = False
        self._lost = True  # there is none yet
        self._begun = False
        self._undeclared = False  # the store may have lost what this process declared
        self._renew_at = self._read_cancels_at = self._cancels_read_at = float("-inf")
        self._unanswered = False  # which jobs are to be cancelled
        self._asked_loop_at: float | None = None
        self.loop_blocked = False  #: the event loop has not turned for long
        self._epoch = self._heeded = self.lease.epoch
        self._reading: ClockReading | None = None
        self._step_us = 0  # by how much the store's clock was set forward, until it is told so
        self._thread = threading.Thread(target=self._run, name="packhorse-heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; blocks until its store call has ended, at most 5 s."""
        self._stopping = True
        self._wake.set()
        self._thread.join(_JOIN_S)

    def must_renew(self) -> None:
        """Distrust the lease and renew it: the store says that there is none."""
        self.lease.distrust()
        self.renew_now()

    def renew_now(self) -> None:
        """Renew without waiting for the next third of the lease."""
        self._renew_at = float("-inf")
        self._wake.set()

    def tell_quiet(self, *, on: bool) -> None:
        """Tell the store whether this worker claims jobs."""
        self._quiet = on
        self.renew_now()

    def look_now(self) -> None:
        """Ask now which held jobs are to be cancelled."""
        self._read_cancels_at = min(self._read_cancels_at, self._cancels_read_at + _LOOK_S_MIN)
        self._wake.set()

    def run_once(self) -> float:
        """Do what is due; return the seconds until the next thing is."""
        if self._monotonic() >= self._renew_at:
            self._renew()
        if self._monotonic() >= self._read_cancels_at:
            self._cancels_read_at = self._monotonic()
            self._read_cancels_at = self._cancels_read_at + _LOOK_S
            self._look_for_cancelled()
            self._check_expiry()
            self._check_loop()
            self._runtime.on_beat()
        self._check_lease()
        until_s = min(self._renew_at, self._read_cancels_at) - self._monotonic()
        return max(0.0, until_s if self._lost else min(until_s, self.lease.left_s))

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            wait_s = self.run_once()
            if not self._stopping:
                self._wake.wait(wait_s)

    def _renew(self) -> None:
        must_tell = self.must_tell
        asked_at = self._monotonic()
        self.lease.asking(asked_at)
        through = (must_tell or asked_at >= self._tell_at) and self.claim_lock.acquire(
            blocking=False
        )
        try:
            held = self._slots.held_fences() if through else None
            renewal = msgspec.structs.replace(
                self._renewal,
                quiet=self._quiet,
                held=held,
                unsure=must_tell or self._lost,
                step_us=self._step_us,
                asked_us=read_later_us(self._reading, asked_at),
                totals=self._runtime.settler.tallies.told,
            )
            renewed = self._store.run(self._store.leases.renew(renewal))
            if renewed.lapsed and self._begun:
                self.lease.distrust()  # at once: what follows may fail
            self._look_at_mark()
            self._declare_again()
        except Exception as error:  # noqa: BLE001 - tried again until the worker ends
            self._renew_at = self._monotonic() + self._backoff.next_s()
            self._heeded = self.lease.epoch
            self._post(self._health.failed, "renew", error)
        else:
            self._renew_at = asked_at + self._interval_s
            if must_tell and not through:  # a claim was in the way
                self._renew_at = asked_at + _LOOK_S_MIN
            if through:
                self._tell_at = asked_at + _TELL_S
            self._step_us = 0
            if renewed.expires_us > renewed.now_us:
                self._granted(asked_at, told=through and must_tell)
            else:  # it came too late, or the clock was set
                self._renew_at = float("-inf")
            self._read_clock(ClockReading(renewed.now_us, asked_at, self._monotonic()))
        finally:
            if through:
                self.claim_lock.release()
        self._post(self._runtime.on_renewed)

    def _look_at_mark(self) -> None:
        """Stop claims if the jobs were copied to another store while this worker was running."""
        copied = self._store.run(self._store.transfer.copied())
        known, self.copied = self.copied, copied is not None  # first: what is told is so already
        if copied is not None and not known:
            self._post(self._health.failed, "mark", StoreCopied(self._store.label, to=copied.to))
        elif copied is None and known:
            self._post(self._health.worked, "mark")

    def _declare_again(self) -> None:
        """Declare limits again to a store that lost the lease: it may have lost them too."""
        if self._begun and self.lease.epoch != self._epoch:
            self._undeclared = True
        if self._undeclared:
            self._declare()
            self._undeclared = False

    def _granted(self, asked_at: float, *, told: bool) -> None:
        self._backoff.reset()
        self.lease.renewed(asked_at)
        if told:
            self.must_tell = False
        self._post(self._health.worked, "renew")
        lapsed = self.lease.epoch != self._epoch
        self._epoch = self.lease.epoch
        if self._begun and (lapsed and not self._lost):
            self._post(self._runtime.on_lease_lost)
            self._lost = True
        if self._begun and self._lost:
            self._post(self._runtime.on_lease_regained)
        self._begun, self._lost = True, False

    def _read_clock(self, reading: ClockReading) -> None:
        """Renew, and have hold limits moved, if the store's clock was set forward."""
        before, self._reading = self._reading, reading
        step_us = 0 if before is None else stepped_us(before, reading)
        if step_us > 0:
            self._step_us = step_us if self._slots.held else 0
            self._renew_at = float("-inf")

    def _check_expiry(self) -> None:
        """Look whether the lease expired while a blocked event loop stops the rescuer."""
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
            self._post(self._health.failed, "cancelled", error)
            return
        self._cancelled_answered()
        if cancelled:
            self._post(self._runtime.on_cancelled, cancelled)

    def _cancelled_answered(self) -> None:
        if self._unanswered:
            self._unanswered = False
            self._post(self._health.worked, "cancelled")

    def _check_lease(self) -> None:
        if not self._begun:
            return
        trusted = self.lease.trusted
        if not self._lost and not trusted:
            self._lost = True
            self._post(self._runtime.on_lease_lost)
        elif self.lease.epoch not in (self._epoch, self._heeded):
            # The supervisor found it gone, and renewed it. Heeded once: after a renewal that fails
            # the next one waits.
            self._heeded = self.lease.epoch
            self._renew_at = float("-inf")

    def _check_loop(self) -> None:
        """Ping the event loop; report once when it does not answer for long."""
        now = self._monotonic()
        if self._asked_loop_at is None:
            self._asked_loop_at = now
            self._post(self._loop_turned)
        elif now - self._asked_loop_at >= _BLOCKED_S and not self.loop_blocked:
            self.loop_blocked = True
            self._runtime.on_loop_blocked(now - self._asked_loop_at)

    def _loop_turned(self) -> None:
        if self._memory is not None:
            if self.loop_blocked:
                self._memory.blocked_by(None)
            self._memory.loop_turned(self._monotonic())
        self._asked_loop_at = None
        self.loop_blocked = False

    def _post(self, call: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call, *arguments)
