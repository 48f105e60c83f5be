# SPDX-License-Identifier: MIT
"""Runs a drain inside this process, and takes apart where its processor time goes.

Two threads do the work: the event loop's, and the one that owns the database for writing. What the
owner does is measured directly, plan by plan. The loop's time is measured as a whole, and divided
by a profile of a second drain; profiling slows small functions most, so the shares are rough.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO, TypeVar

import msgspec

from benchmarks.workloads import event_loop
from packhorse import Packhorse, logs
from packhorse.stores import open_store
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.protocol import JobStore, Store

T = TypeVar("T")

_PORTION: Final = 1000
_SLOTS: Final = 100
#: Which part of the loop's work a module belongs to; the first that fits.
_PARTS: Final = (
    ("handler", ("benchmarks/hot_path.py",)),
    ("claim", ("worker/fetcher", "worker/claim_policy")),
    (
        "start",
        (
            *("worker/slots", "worker/runners", "worker/executor", "worker/plans"),
            *("worker/attempt", "worker/worker_runtime", "worker/runtime"),
            *("worker/hooks", "worker/stopping"),
            *("context.py", "codec.py", "core/results.py", "client/registry.py"),
        ),
    ),
    (
        "settle",
        (
            *("worker/settler", "worker/tallies", "worker/telemetry", "worker/outcomes"),
            *("lifecycle.py", "settlement.py", "outcome.py", "packhorse/events"),
        ),
    ),
    ("store", ("packhorse/stores",)),
    ("rest of the worker", ("packhorse/",)),
)
OTHER: Final = "event loop"


@dataclass(slots=True)
class Costs:
    """Processor time by plan, in the owner's thread; and of the loop, from first to last job."""

    plans_ns: dict[str, int] = field(default_factory=dict)
    owner_first_ns: int = 0
    owner_last_ns: int = 0
    loop_first_ns: int = 0
    loop_last_ns: int = 0
    count: int = 0

    def add(self, verb: str, began_ns: int) -> None:
        now_ns = time.thread_time_ns()
        self.owner_first_ns = self.owner_first_ns or began_ns
        self.owner_last_ns = now_ns
        self.plans_ns[verb] = self.plans_ns.get(verb, 0) + now_ns - began_ns

    def hit(self) -> None:
        self.count += 1
        if self.count == 1:
            self.loop_first_ns = time.thread_time_ns()
        if not self.count % 100:
            self.loop_last_ns = time.thread_time_ns()


@dataclass(frozen=True, slots=True)
class Parts:
    """Microseconds of processor time for each job."""

    loop: float
    owner_plans: dict[str, float]
    owner_rest: float  #: begin, commit, waking others, handing back answers
    jobs_per_second: float


def drain_parts(path: Path, synchronous: str, jobs: int) -> Parts:
    """Drain without a profiler, measuring by thread and plan."""
    costs = Costs()
    store = _TimedStore(open_store(_url(path, synchronous)), costs)
    app, submit = _app(store, costs)
    submit(jobs)
    costs.plans_ns.clear()
    costs.owner_first_ns = 0
    began = time.perf_counter()
    event_loop.run(app.arun(concurrency=_SLOTS, burst=True))
    seconds = time.perf_counter() - began
    store.close()
    plans = {verb: spent / costs.count / 1000 for verb, spent in costs.plans_ns.items()}
    owner = (costs.owner_last_ns - costs.owner_first_ns) / costs.count / 1000
    return Parts(
        loop=(costs.loop_last_ns - costs.loop_first_ns) / costs.count / 1000,
        owner_plans=plans,
        owner_rest=owner - sum(plans.values()),
        jobs_per_second=costs.count / seconds,
    )


def drain_profile(
    path: Path, synchronous: str, jobs: int, *, lines: TextIO | None = None
) -> tuple[pstats.Stats, pstats.Stats]:
    """Drain under a profiler in each of the two threads: (the loop's, the owner's).

    With `lines`, a JSON log line goes there at each job's start and end.
    """
    store = open_store(_url(path, synchronous))
    app, submit = _app(store, Costs())
    if lines is not None:
        logs.configure("info", "json", stream=lines)
        logs.attach(app.bus)
    submit(jobs)
    loop, owner = cProfile.Profile(), cProfile.Profile()

    async def profiled() -> None:
        with suppress(ValueError):  # from Python 3.12 on one profiler sees every thread
            await store.arun(_in_owner(owner.enable))
        with suppress(ValueError):
            loop.enable()
        await app.arun(concurrency=_SLOTS, burst=True)
        loop.disable()
        await store.arun(_in_owner(owner.disable))

    event_loop.run(profiled())
    store.close()
    return _stats(loop), _stats(owner)


def submit_profile(path: Path, synchronous: str, jobs: int, *, many: bool) -> pstats.Stats:
    """Submit from plain code under a profiler, one at a time or many."""
    store = open_store(_url(path, synchronous))
    app, submit = _app(store, Costs())
    noop = app.tasks["noop"]
    noop.enqueue(number=0)
    profiler = cProfile.Profile()
    profiler.enable()
    if many:
        submit(jobs)
    else:
        for number in range(jobs):
            noop.enqueue(number=number)
    profiler.disable()
    store.close()
    return _stats(profiler)


def part_of(filename: str) -> str:
    """The part of the work that a source file belongs to."""
    name = filename.replace("\\", "/")
    return next((part for part, files in _PARTS if any(one in name for one in files)), OTHER)


def _url(path: Path, synchronous: str) -> str:
    return f"sqlite:///{path}?synchronous={synchronous}"


def _stats(profiler: cProfile.Profile) -> pstats.Stats:
    profiler.create_stats()
    if not profiler.stats:
        return pstats.Stats()
    return pstats.Stats(profiler)


def _app(store: Any, costs: Costs) -> tuple[Packhorse, Callable[[int], None]]:
    app = Packhorse(store=store)

    @app.task
    async def noop(number: int) -> int:
        costs.hit()
        return number

    def submit(count: int) -> None:
        for start in range(0, count, _PORTION):
            app.enqueue_many([noop.call(number) for number in range(start, start + _PORTION)])

    return app, submit


class _TimedStore:
    """A store whose plans note their processor time, in whichever thread they run."""

    def __init__(self, store: Store, costs: Costs) -> None:
        self._store = store
        self.jobs = _TimedJobs(store.jobs, costs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _TimedJobs:
    def __init__(self, jobs: JobStore, costs: Costs) -> None:
        self._jobs = jobs
        self._costs = costs

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._jobs, name)
        return lambda *args, **kwargs: _timed(verb(*args, **kwargs), self._costs)


def _timed(plan: Plan[T], costs: Costs) -> Plan[T]:
    def around(steps: Callable[[], Steps[Any]]) -> Callable[[], Steps[Any]]:
        def timed_steps() -> Steps[Any]:
            began_ns = time.thread_time_ns()
            answer = yield from steps()
            costs.add(plan.verb, began_ns)
            return answer

        return timed_steps

    look = None if plan.look is None else around(plan.look)
    return msgspec.structs.replace(plan, steps=around(plan.steps), look=look)


def _in_owner(action: Callable[[], object]) -> Plan[None]:
    """A plan that asks nothing of the store, but runs in the thread that owns it."""

    def steps() -> Steps[None]:
        action()
        yield from ()

    return Plan("profile", steps)
