# SPDX-License-Identifier: MIT
"""Submits the jobs, cancels some, and cuts the worker's connections now and then."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from packhorse import JobHandle, JobStatus, Packhorse, StoreUnavailable

T = TypeVar("T")

#: Jobs submitted together.
PORTION: Final = 1_000
#: No more than so many wait, so that the worker's memory is not about them.
_DEPTH_MAX: Final = 4_000
_LOOK_S: Final = 0.05
#: A store whose connections are cut may fail so often in a row.
_TRIES: Final = 100
#: Of each thousand jobs so many are of each kind.
_MIX: Final = (("succeed", 900), ("report", 30), ("block", 30), ("stumble", 25), ("dawdle", 5))
#: So many are cancelled while they run, and as many before.
_CANCELLED: Final = 5
#: How often it is looked whether they run.
_LOOKS: Final = 40


class Cutter(Protocol):
    """Cuts connections, where a store has any."""

    cuts: int

    def spare_present(self) -> None:
        """Those that are connected now are left alone."""
        ...

    def cut(self) -> None:
        """Cut all others."""
        ...


class Feeder:
    """Keeps one worker busy."""

    def __init__(self, app: Packhorse, cutter: Cutter, *, seed: int) -> None:
        self.submitted = 0
        self.cancelled = 0
        self._app = app
        self._cutter = cutter
        self._chance = random.Random(seed)

    @property
    def retried(self) -> int:
        """How many jobs run a second time."""
        again = sum(count for name, count in _MIX if name in ("stumble", "dawdle"))
        return self.submitted * again // PORTION

    def prepare(self) -> None:
        """Connect, so that the worker's connections can be told from these."""
        self._app.store.migrate()
        self.depth()
        self._cutter.spare_present()

    def feed(self, *, cut_every: int) -> None:
        """Submit a portion once there is room for it; cut connections after so many jobs."""
        while self.depth() > _DEPTH_MAX:
            time.sleep(_LOOK_S)
        tasks, first = self._app.tasks, self.submitted
        unwanted = [tasks["wait"].call(first) for _ in range(_CANCELLED)]
        running = _patiently(
            lambda: self._app.enqueue_many([call.using(priority="critical") for call in unwanted])
        )
        calls = [tasks[name].call(first) for name, count in _MIX for _ in range(count)]
        self._chance.shuffle(calls)
        _patiently(lambda: self._app.enqueue_many(calls))
        waiting = _patiently(lambda: self._app.enqueue_many(unwanted))
        self.submitted += PORTION
        if self.submitted % cut_every == 0:
            self._cutter.cut()
        self._wait_for(running)
        for job in [*running, *waiting]:
            self.cancelled += _patiently(job.cancel)

    def _wait_for(self, jobs: Sequence[JobHandle[Any]]) -> None:
        """Give jobs time to begin; a worker that is just reconnecting may take longer."""
        for _ in range(_LOOKS):
            if {_patiently(job.status) for job in jobs} == {JobStatus.PROCESSING}:
                return
            time.sleep(_LOOK_S)

    def depth(self) -> int:
        """How many jobs wait."""
        return _patiently(lambda: self._app.depth("default"))

    def drained(self, alive: Callable[[], bool]) -> None:
        """Wait until nothing waits any more."""
        while alive() and self.depth():
            time.sleep(_LOOK_S)


def _patiently(call: Callable[[], T]) -> T:
    """The answer, though connections be cut meanwhile; a job stored twice is one more job."""
    last: Any = None
    for _ in range(_TRIES):
        try:
            return call()
        except StoreUnavailable as error:
            last = error
            time.sleep(_LOOK_S)
    raise last
