# SPDX-License-Identifier: MIT
"""An app's way to its store: opened on first use, its queues declared before the first submit.

One connection serves all threads, event loops and forked children of a process; which physical
connection a plan runs on is the store's business.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from packhorse.clock import Clock
from packhorse.declarations import Declarations, changed_tasks
from packhorse.errors import QueueFull, StoreError, StoreUnavailable, UsageError
from packhorse.events import EventBus, QueueConflict, QueueFilling, TaskConflict
from packhorse.filling import FillingWatch
from packhorse.job import NewJob
from packhorse.registry import Registry
from packhorse.room import Patience, patience, submit_with_room
from packhorse.stores.plan import Plan
from packhorse.stores.protocol import Store
from packhorse.stores.requests import QueueSettings, Submitted, TaskSettings
from packhorse.waiting import WaitLoop, at_fork, in_event_loop

__all__ = ["Ask", "Connection"]

T = TypeVar("T")

#: Builds a plan for the store it will run on.
Ask = Callable[[Store], Plan[T]]


class Connection:
    """Runs what an app and its handles ask of the store."""

    def __init__(
        self, opener: Callable[[], Store], *, registry: Registry, bus: EventBus, clock: Clock
    ) -> None:
        self.registry = registry
        self.bus = bus
        self.clock = clock
        self.declarations = Declarations(registry)
        self._opener = opener
        self._lock = threading.RLock()
        self._opening = False
        self._store: Store | None = None
        self._filling = FillingWatch(bus, clock)
        self._waits = WaitLoop()
        at_fork(self._forget_lock)

    @property
    def store(self) -> Store:
        """The store, opened by whoever needs it first."""
        store = self._store
        if store is not None:
            return store
        with self._lock:
            if self._opening:  # by this very thread, as others wait for the lock
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

    async def astore(self) -> Store:
        """The store; opening it may touch a disk, so that is done off the event loop."""
        if self._store is not None:
            return self._store
        import asyncio  # noqa: PLC0415 - code that only submits does not pay for it

        return await asyncio.to_thread(lambda: self.store)

    @property
    def queues(self) -> dict[str, QueueSettings]:
        """The queues declared in this process, by name."""
        return self.declarations.queues

    def run(self, ask: Ask[T]) -> T:
        """Run a plan in this thread."""
        store = self.store
        return store.run(ask(store))

    async def arun(self, ask: Ask[T]) -> T:
        """Run a plan without blocking the event loop."""
        store = await self.astore()
        return await store.arun(ask(store))

    def wait(self, work: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        """Run a wait on the loop that serves waits, while this thread blocks."""
        store = self.store
        return self._waits.run(lambda: work(store))

    # ------------------------------------------------------------------------------ submitting

    def submit(self, jobs: Sequence[NewJob], wait_us: int | None = None) -> tuple[Submitted, ...]:
        """Store jobs, all or none, after the queues were declared; wait for room if that is asked.

        `wait_us` is how long at most; None is what the queue says.
        """
        try:
            if self.declarations.told != self.registry.news:
                self.declare()
            store = self._store or self.store
            try:
                answers = store.run(store.jobs.submit(jobs))
            except QueueFull as full:
                answers = self._submit_later(jobs, full, wait_us)
        except StoreUnavailable as error:
            raise _named(error, jobs) from error
        if QueueFilling in self.bus.observers:
            self._watch(jobs)
        return answers

    async def asubmit(
        self, jobs: Sequence[NewJob], wait_us: int | None = None
    ) -> tuple[Submitted, ...]:
        """As `submit`, without blocking the event loop."""
        try:
            if self.declarations.told != self.registry.news:
                await self.adeclare()
            store = self._store or await self.astore()
            try:
                answers = await store.arun(store.jobs.submit(jobs))
            except QueueFull as full:
                answers = await self._asubmit_later(jobs, full, wait_us)
        except StoreUnavailable as error:
            raise _named(error, jobs) from error
        if QueueFilling in self.bus.observers:
            await self._awatch(jobs)
        return answers

    def _submit_later(
        self, jobs: Sequence[NewJob], full: QueueFull, wait_us: int | None
    ) -> tuple[Submitted, ...]:
        """Wait for room, if that is wanted."""
        states = self.run(lambda store: store.queues.queues())
        patient = patience(full, states, self.declarations.wait_us(full.queue), wait_us)
        if patient is None:
            raise full
        if in_event_loop():
            raise UsageError(
                f"queue {full.queue!r} is full, and waiting for room would block the running "
                "event loop, which may have to make it: use 'await task.aenqueue()', or "
                "wait=0 to be told at once; nothing was stored"
            ) from full
        return self.wait(self._with_room(jobs, patient))

    async def _asubmit_later(
        self, jobs: Sequence[NewJob], full: QueueFull, wait_us: int | None
    ) -> tuple[Submitted, ...]:
        """As `_submit_later`, without blocking the event loop."""
        states = await self.arun(lambda store: store.queues.queues())
        patient = patience(full, states, self.declarations.wait_us(full.queue), wait_us)
        if patient is None:
            raise full
        return await self._with_room(jobs, patient)(await self.astore())

    def _with_room(
        self, jobs: Sequence[NewJob], patient: Patience
    ) -> Callable[[Store], Coroutine[Any, Any, tuple[Submitted, ...]]]:
        return lambda store: submit_with_room(store, jobs, patient, self.clock)

    def _watch(self, jobs: Sequence[NewJob]) -> None:
        """Tell who wants to know of queues that fill up; the jobs are stored whatever happens."""
        watch = self._filling
        with contextlib.suppress(StoreError):
            if watch.stale:
                watch.learn(self.run(lambda store: store.queues.queues()))
            for queue in watch.watched(job.queue for job in jobs):
                watch.note(queue, self.run(_depth_of(queue)))

    async def _awatch(self, jobs: Sequence[NewJob]) -> None:
        """As `_watch`, without blocking the event loop."""
        watch = self._filling
        with contextlib.suppress(StoreError):
            if watch.stale:
                watch.learn(await self.arun(lambda store: store.queues.queues()))
            for queue in watch.watched(job.queue for job in jobs):
                watch.note(queue, await self.arun(_depth_of(queue)))

    # ------------------------------------------------------------------------------- declaring

    def declare(self) -> None:
        """Tell the store of declarations it has not heard."""
        # Told twice is harmless, so that nobody has to hold a lock while the store works.
        news = self.registry.news
        if self.declarations.told == news:
            return
        self.declarations.check_all()
        queues = tuple(self.queues.values())
        if queues:
            self._note_queues(queues, self.run(lambda store: store.queues.declare(queues)))
        tasks = self.declarations.limits(everything=False)
        if tasks:
            self._note_tasks(tasks, self.run(lambda store: store.queues.declare_tasks(tasks)))
        self.declarations.told = news

    async def adeclare(self) -> None:
        """As `declare`, without blocking the event loop."""
        news = self.registry.news
        if self.declarations.told == news:
            return
        self.declarations.check_all()
        queues = tuple(self.queues.values())
        if queues:
            before = await self.arun(lambda store: store.queues.declare(queues))
            self._note_queues(queues, before)
        tasks = self.declarations.limits(everything=False)
        if tasks:
            replaced = await self.arun(lambda store: store.queues.declare_tasks(tasks))
            self._note_tasks(tasks, replaced)
        self.declarations.told = news

    async def adeclare_all(self) -> None:
        """Tell the store of everything, as a worker does: limits that are gone are forgotten."""
        self.declarations.check_all()
        await self.adeclare()
        known = await self.arun(lambda store: store.queues.tasks())
        tasks = changed_tasks(self.declarations.limits(everything=True), known)
        if tasks:
            replaced = await self.arun(lambda store: store.queues.declare_tasks(tasks))
            self._note_tasks(tasks, replaced)

    def _note_queues(
        self, queues: Iterable[QueueSettings], before: tuple[QueueSettings | None, ...]
    ) -> None:
        for settings, replaced in zip(queues, before, strict=True):
            if replaced is not None:
                was, now = _difference(replaced, settings)
                self.bus.emit(QueueConflict(queue=settings.name, before=was, now=now))

    def _note_tasks(
        self, tasks: Iterable[TaskSettings], before: tuple[TaskSettings | None, ...]
    ) -> None:
        for settings, replaced in zip(tasks, before, strict=True):
            if replaced is not None:
                was, now = _difference(replaced, settings)
                self.bus.emit(TaskConflict(task=settings.name, before=was, now=now))

    # ---------------------------------------------------------------------------------- ending

    def close(self) -> Store | None:
        """End waits and let go of the store, which the owner may close; later use opens anew."""
        self._waits.close()
        with self._lock:
            store, self._store = self._store, None
            self.declarations.told = 0  # the next store hears it all
        return store

    def _forget_lock(self) -> None:
        """In a forked child: some thread of the parent may have held it."""
        self._lock, self._opening = threading.RLock(), False
        self.declarations.renew_lock()


def _depth_of(queue: str) -> Ask[int]:
    return lambda store: store.queues.depth(queue)


def _difference(before: msgspec.Struct, now: msgspec.Struct) -> tuple[str, str]:
    """What differs between two settings of the same thing, as JSON objects."""
    old, new = msgspec.structs.asdict(before), msgspec.structs.asdict(now)
    names = [name for name in new if old[name] != new[name]]
    texts = [
        msgspec.json.encode({name: values[name] for name in names}).decode()
        for values in (old, new)
    ]
    return texts[0], texts[1]


def _named(error: StoreUnavailable, jobs: Sequence[NewJob]) -> StoreUnavailable:
    """The same trouble with the job in it, so that the caller can submit the same id again."""
    if len(jobs) == 1:
        job_id = jobs[0].id
        what = f"job {job_id} of task {jobs[0].task}"
        stored = "may have been stored" if error.maybe_stored else "was not stored"
    else:
        job_id = None
        what = f"the {len(jobs)} jobs of this call"
        stored = "may all have been stored" if error.maybe_stored else "were not stored"
    return StoreUnavailable(
        f"{error}; {what} {stored}: submitting again with the same job_id is safe",
        job_id=job_id,
        maybe_stored=error.maybe_stored,
    )
