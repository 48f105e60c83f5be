# SPDX-License-Identifier: MIT
"""The connection of an app to its store, opened on first use; declares queues before submits.

One connection serves all threads, event loops and forked children of a process.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from packhorse.artifacts import PlaceSource
from packhorse.client.backpressure import FillingWatch, patience, submit_with_room
from packhorse.client.declarations import Declarations, changed_tasks, difference
from packhorse.client.registry import Registry
from packhorse.client.transactions import Transactions
from packhorse.client.waiting import WaitLoop
from packhorse.core.clock import Clock
from packhorse.core.generators import adrive, drive
from packhorse.core.interpreter import at_fork, in_event_loop
from packhorse.core.job import JobRecord, NewJob
from packhorse.errors import (
    PackhorseError,
    QueueClosed,
    QueueFull,
    StoreCopied,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from packhorse.events import (
    EventBus,
    JobDead,
    QueueConflict,
    QueueFilling,
    TaskConflict,
    dead_event,
)
from packhorse.stores.plan import Asking, Plan
from packhorse.stores.protocol import Store
from packhorse.stores.requests import QueueSettings, Submitted, TaskSettings
from packhorse.stores.transfer import Copied

if TYPE_CHECKING:
    from packhorse.client.outbox import Outboxes

T = TypeVar("T")
S = TypeVar("S", QueueSettings, TaskSettings)

#: How old a declaration may be before a submit with limits declares them again.
DOUBTED_AFTER_S: Final = 1.0
#: Builds a plan for the store it will run on.
Ask = Callable[[Store], Plan[T]]


@dataclass(frozen=True, slots=True)
class _RoomWait:
    """A step that waits until a full queue has room, and submits then."""

    full: QueueFull
    work: Callable[[Store], Coroutine[Any, Any, tuple[Submitted, ...]]]


#: Yields plans to run; is sent the answer of each, or thrown its error.
_Steps = Generator[Ask[Any] | _RoomWait, Any, T]


class Connection:
    """Runs the plans of an app and its handles on the store."""

    def __init__(
        self, opener: Callable[[], Store], *, registry: Registry, bus: EventBus, clock: Clock
    ) -> None:
        self.registry = registry
        self.bus = bus
        self.clock = clock
        self.declarations = Declarations(registry)
        self.places = PlaceSource(lambda: None, chosen=False)  #: of artifacts; an app names one
        self._opener = opener
        self._lock = threading.RLock()
        self._opening = False
        self._store: Store | None = None
        self.transactions = Transactions()
        self.outboxes: Outboxes | tuple[()] = ()  #: for databases that the store is not in
        self._filling = FillingWatch(bus, clock)
        self._waits = WaitLoop()
        at_fork(self._forget_lock)

    @property
    def store(self) -> Store:
        """The store, opened on first use."""
        store = self._store
        if store is not None:
            return store
        with self._lock:
            if self._opening:  # by this thread: others wait for the lock
                raise UsageError(
                    "the store is just being opened by the code that this call interrupts, as a "
                    "signal handler does; leave a note there, and call when the handler is done"
                )
            if self._store is None:
                self._opening = True
                try:
                    self._store = self._opener()
                finally:
                    self._opening = False
            return self._store

    @property
    def opened(self) -> Store | None:
        """The store, if it is open."""
        return self._store

    async def astore(self) -> Store:
        """Return the store; open it in a thread, since opening may block."""
        if self._store is not None:
            return self._store
        import asyncio  # noqa: PLC0415 - code that only submits does not pay for it

        return await asyncio.to_thread(lambda: self.store)

    @property
    def queues(self) -> dict[str, QueueSettings]:
        """The queues declared in this process, by name."""
        return self.declarations.queues

    def drive(self, asking: Asking[T]) -> T:
        """Run a generator that asks for one plan after another in this thread."""
        return drive(asking, self._run_plan)

    async def adrive(self, asking: Asking[T]) -> T:
        """As `drive`, without blocking the event loop."""
        await self.astore()  # its plans are built by an open store
        return await adrive(asking, self._arun_plan)

    def _run_plan(self, plan: Plan[T]) -> T:
        """Run a plan; look in the outboxes for a job that the store does not know."""
        answer = self.store.run(plan)
        if not self.outboxes or plan.named is None or not plan.named.missed(answer):
            return answer
        return self.outboxes.find(self.store, plan, answer)

    async def _arun_plan(self, plan: Plan[T]) -> T:
        answer = await self.store.arun(plan)
        if not self.outboxes or plan.named is None or not plan.named.missed(answer):
            return answer
        return await self.outboxes.afind(self.store, plan, answer)

    def wait(self, work: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        """Block this thread while a coroutine waits on the event loop kept for waits."""
        store = self.store
        return self._waits.run(lambda: work(store))

    def _answer(self, step: Ask[Any] | _RoomWait) -> Any:
        if not isinstance(step, _RoomWait):
            store = self._store or self.store
            return store.run(step(store))
        if in_event_loop():
            raise UsageError(
                f"queue {step.full.queue!r} is full, and waiting for room would block the running "
                "event loop, which may have to make it: use 'await task.aenqueue()', or "
                "wait=0 to be told at once; nothing was stored"
            ) from step.full
        return self.wait(step.work)

    async def _aanswer(self, step: Ask[Any] | _RoomWait) -> Any:
        store = self._store or await self.astore()
        if isinstance(step, _RoomWait):
            return await step.work(store)
        return await store.arun(step(store))

    # ------------------------------------------------------------------------------ submitting

    def submit(
        self, jobs: Sequence[NewJob], *, wait_us: int | None = None, ids_are_new: bool = False
    ) -> tuple[Submitted, ...]:
        """Declare queues if need be, then store jobs, all or none; wait for room if asked to.

        `wait_us` is how long at most; None is what the queue says. `ids_are_new`: see `JobStore`.
        """
        if not self._is_ordinary(jobs):
            return drive(self._submitting(jobs, wait_us, ids_are_new), self._answer)
        try:
            store = self._store or self.store
            return store.run(store.jobs.submit(jobs, ids_are_new=ids_are_new))
        except PackhorseError as error:
            return drive(self._submitting(jobs, wait_us, ids_are_new, error), self._answer)

    async def asubmit(
        self, jobs: Sequence[NewJob], *, wait_us: int | None = None, ids_are_new: bool = False
    ) -> tuple[Submitted, ...]:
        """As `submit`, without blocking the event loop."""
        if not self._is_ordinary(jobs):
            return await adrive(self._submitting(jobs, wait_us, ids_are_new), self._aanswer)
        try:
            store = await self.astore()
            return await store.arun(store.jobs.submit(jobs, ids_are_new=ids_are_new))
        except PackhorseError as error:
            return await adrive(self._submitting(jobs, wait_us, ids_are_new, error), self._aanswer)

    def _is_ordinary(self, jobs: Sequence[NewJob]) -> bool:
        """Whether a submit is one plan and nothing before or after it, as most are.

        A store that was emptied or restored from a copy has lost the limits it was told, and does
        not say so: jobs with limits have them declared again after a while.
        """
        declarations, observers = self.declarations, self.bus.observers
        if (
            declarations.limiting
            and declarations.limit(jobs)
            and self.clock.monotonic() - declarations.told_at >= DOUBTED_AFTER_S
        ):
            declarations.told = 0
        return (
            declarations.told == self.registry.news
            and QueueFilling not in observers
            and JobDead not in observers
        )

    def _submitting(
        self,
        jobs: Sequence[NewJob],
        wait_us: int | None,
        ids_are_new: bool,  # noqa: FBT001 - as the caller was told
        failed: PackhorseError | None = None,
    ) -> _Steps[tuple[Submitted, ...]]:
        """Declare and submit; or handle the error with which a submit has `failed` already."""

        def ask(store: Store) -> Plan[tuple[Submitted, ...]]:
            return store.jobs.submit(jobs, ids_are_new=ids_are_new)

        try:
            try:
                if failed is not None:
                    raise failed
                yield from self._declaring()
                answers: tuple[Submitted, ...] = yield ask
            except QueueFull as full:
                answers = yield from self._waiting_for_room(ask, jobs, full, wait_us)
        except QueueClosed:
            yield from self._refusing_copied()  # a store that was copied closes all its queues
            raise
        except StoreUnavailable as error:
            self.declarations.told = 0  # it may come back empty
            raise _naming_jobs(error, jobs) from error
        if QueueFilling in self.bus.observers:
            yield from self._watching(jobs)
        if JobDead in self.bus.observers:
            yield from self._telling_shed(answers)
        return answers

    def _waiting_for_room(
        self,
        ask: Ask[tuple[Submitted, ...]],
        jobs: Sequence[NewJob],
        full: QueueFull,
        wait_us: int | None,
    ) -> _Steps[tuple[Submitted, ...]]:
        states = yield lambda store: store.queues.queues()
        patient = patience(full, states, self.declarations.of(full.queue).wait_us, wait_us)
        if patient is None:
            raise full
        topics = frozenset(f"room:{job.queue}" for job in jobs)
        answers: tuple[Submitted, ...] = yield _RoomWait(
            full, lambda store: submit_with_room(store, ask, topics, patient, self.clock)
        )
        return answers

    def _telling_shed(self, answers: Sequence[Submitted]) -> _Steps[None]:
        """Emit an event for each job that a full queue dropped; the others are stored anyway."""
        with contextlib.suppress(StoreError):
            for job_id in [job_id for each in answers for job_id in each.shed]:
                record = yield _record_of(job_id)
                if record is not None and record.dead_reason is not None:
                    self.bus.emit(dead_event(record))

    def _watching(self, jobs: Sequence[NewJob]) -> _Steps[None]:
        """Emit events for queues that fill up; the jobs are stored whatever happens here."""
        watch = self._filling
        with contextlib.suppress(StoreError):
            if watch.stale:
                watch.learn((yield lambda store: store.queues.queues()))
            for queue in watch.watched(job.queue for job in jobs):
                watch.note(queue, (yield _depth_of(queue)))

    # ------------------------------------------------------------------------------- declaring

    async def adeclare(self) -> None:
        """Declare to the store what is new since the last time."""
        await adrive(self._declaring(), self._aanswer)

    def declare_all(self) -> None:
        """As `adeclare_all`, from a thread."""
        drive(self._declaring_all(), self._answer)

    async def adeclare_all(self) -> None:
        """Declare everything, as workers do; the store drops limits that are no longer declared."""
        await adrive(self._declaring_all(), self._aanswer)

    def _declaring(self) -> _Steps[None]:
        # No lock: two threads may declare the same, which is harmless.
        news = self.registry.news
        if self.declarations.told == news:
            return
        self.declarations.check_all()
        yield from self._refusing_copied()
        queues = (*self.queues.values(), *self.declarations.of_the_store)
        if queues:
            before = yield lambda store: store.queues.declare(queues)
            for was, now in _conflicts(before, queues):
                self.bus.emit(QueueConflict(queue=now.name, **difference(was, now)))
        yield from self._declaring_tasks(self.declarations.limits(everything=False))
        self.declarations.note_told(news, self.clock.monotonic())

    def _refusing_copied(self) -> _Steps[None]:
        copied: Copied | None = yield lambda store: store.transfer.copied()
        if copied is not None:  # or jobs would run here and in the copy
            raise StoreCopied(self.store.label, to=copied.to)

    def _declaring_all(self) -> _Steps[None]:
        self.declarations.told = 0  # the store may have lost its declarations
        yield from self._declaring()
        known = yield lambda store: store.queues.tasks()
        yield from self._declaring_tasks(
            changed_tasks(self.declarations.limits(everything=True), known)
        )

    def _declaring_tasks(self, tasks: tuple[TaskSettings, ...]) -> _Steps[None]:
        if tasks:
            before = yield lambda store: store.queues.declare_tasks(tasks)
            for was, now in _conflicts(before, tasks):
                self.bus.emit(TaskConflict(task=now.name, **difference(was, now)))

    # ---------------------------------------------------------------------------------- ending

    def close(self) -> Store | None:
        """End waits, and return the store for its owner to close; a later use opens it again."""
        self._waits.close()
        for outbox in self.outboxes:
            outbox.close()
        with self._lock:
            store, self._store = self._store, None
            self.declarations.told = 0  # declare everything to the next store
        return store

    def _forget_lock(self) -> None:
        """Replace the lock in a forked child: a thread of the parent may have held it."""
        self._lock, self._opening = threading.RLock(), False
        self.declarations.renew_lock()


class Asks:
    """A base of classes whose verbs ask the store through a connection (`core.generators`)."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _drive(self, work: Asking[T]) -> T:
        return self._connection.drive(work)

    async def _adrive(self, work: Asking[T]) -> T:
        return await self._connection.adrive(work)


def _depth_of(queue: str) -> Ask[int]:
    return lambda store: store.queues.depth(queue)


def _record_of(job_id: str) -> Ask[JobRecord | None]:
    return lambda store: store.inspection.job(job_id)


def _conflicts(before: Iterable[S | None], now: Iterable[S]) -> Iterator[tuple[S, S]]:
    """Pair each replaced setting with the one that replaced it."""
    pairs = zip(before, now, strict=True)
    return ((was, settings) for was, settings in pairs if was is not None)


def _naming_jobs(error: StoreUnavailable, jobs: Sequence[NewJob]) -> StoreUnavailable:
    """Name the job in the error, so that the caller can submit it again under the same id."""
    if len(jobs) == 1:
        job_id = jobs[0].id
        what = f"job {job_id} of task {jobs[0].task}"
        stored = "may have been stored" if error.maybe_stored else "was not stored"
    else:
        job_id = None
        what = f"{len(jobs)} jobs of this call"
        stored = "may all have been stored" if error.maybe_stored else "were not stored"
    return StoreUnavailable(
        f"{error}; {what} {stored}: submitting again with the same job_id is safe",
        job_id=job_id,
        maybe_stored=error.maybe_stored,
    )
