# SPDX-License-Identifier: MIT
"""The app: where tasks, queues, a store and a worker are put together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from packhorse.call import Call
from packhorse.clock import Chance, Clock, SystemChance, SystemClock
from packhorse.config import WorkerOptions
from packhorse.connection import Connection
from packhorse.declaring import queue_declaration
from packhorse.decorator import TaskDecorator
from packhorse.durations import Duration
from packhorse.errors import ConfigError, UsageError
from packhorse.events import Event, EventBus, ObserverFailed
from packhorse.explaining import Explanation
from packhorse.handle import JobHandle
from packhorse.insights import Insights
from packhorse.job import NewJob
from packhorse.options import QueueOptions
from packhorse.policies.autoscale import ScaleRule
from packhorse.protocol import Task as WireTask
from packhorse.registry import DEFAULT_QUEUE, Registry
from packhorse.running import (
    RunOptions,
    add_handlers,
    config_options,
    installed_version,
    run_options,
    worker_version,
)
from packhorse.steering import Steering
from packhorse.stores import open_store
from packhorse.stores.protocol import Store
from packhorse.submission import Submission
from packhorse.task import Task
from packhorse.tenant import TenantView
from packhorse.waiting import in_event_loop
from packhorse.wire import checked_config, checked_task, wire_job, wire_queues

if TYPE_CHECKING:
    from packhorse.consumer import Consumer
    from packhorse.supervisor.link import Link
    from packhorse.worker import WorkerReport

__all__ = ["DEFAULT_URL", "Packhorse"]

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_URL: Final = "sqlite:///packhorse.db"
_URL: Final = "PACKHORSE_URL"
_URL_FILE: Final = "PACKHORSE_URL_FILE"


class Packhorse(Steering):
    """Tasks, their queues and the store their jobs live in; safe to share between threads.

    The store is named by a URL (given, or from PACKHORSE_URL, or from the file PACKHORSE_URL_FILE
    names, else a SQLite file here) and opened when it is first needed. Tests may give a ready
    `store`, which then stays theirs to close, and their own time and chance. With a `spool`, a
    path, submissions made while the store is away are kept in that file, and delivered later.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        store: Store | None = None,
        clock: Clock | None = None,
        chance: Chance | None = None,
        spool: str | os.PathLike[str] | None = None,
    ) -> None:
        self.bus = EventBus()
        self.registry = Registry()
        self._chance = chance or SystemChance()
        self._own_store = store is None
        #: The store's URL as it was given, secrets and all; None for a store that was given ready.
        self.url = None if store is not None else (url or _url_from_environment() or DEFAULT_URL)
        self.code_version: str | None = None  #: shown beside its workers; None: a fingerprint
        self.origin: str | None = None  #: `module:attribute` to import it by, where that is known
        self.link: Link | None = None  #: to the supervisor of this process, if it has one
        self._middlewares: list[Callable[..., Any]] = []
        self._lifespans: list[Callable[..., Any]] = []
        self._tasks: dict[str, Task[..., Any]] = {}
        opener = _opener(self.url, clock) if store is None else lambda: store
        super().__init__(self._connect(opener, clock or SystemClock(), spool))
        self._submission = Submission(self._connection)
        #: `@app.task`, or `@app.task(queue="mail", ...)`: declares a function as a task.
        self.task = TaskDecorator(self.registry, self._submission, self._tasks)

    def _connect(
        self,
        opener: Callable[[], Store],
        clock: Clock,
        spool: str | os.PathLike[str] | None,
    ) -> Connection:
        if spool is None:
            return Connection(opener, registry=self.registry, bus=self.bus, clock=clock)
        from pathlib import Path  # noqa: PLC0415 - slow to import, and few have a spool

        from packhorse.spool import SpoolingConnection  # noqa: PLC0415 - as above

        return SpoolingConnection(
            opener, registry=self.registry, bus=self.bus, clock=clock, path=Path(spool)
        )

    # ------------------------------------------------------------------------------ declaring

    def queue(self, name: str, **options: Unpack[QueueOptions]) -> None:
        """Declare a queue; the store is told before the next submit or run."""
        self._connection.declarations.add(queue_declaration(name, options))

    @property
    def scales(self) -> Mapping[str, ScaleRule]:
        """The queues declared with an `autoscale`, by name."""
        return self._connection.declarations.scales

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The tasks declared, by name."""
        return dict(self._tasks)

    def on(self, event: type[Event] | str) -> Callable[[F], F]:
        """Call the decorated function with every such event: a class, `job.dead`, `job.*`, `*`."""

        def subscribe(observer: F) -> F:
            self.bus.subscribe(event, observer)
            return observer

        return subscribe

    def middleware(self, function: F) -> F:
        """Run the decorated function around every attempt of this app's workers."""
        self._middlewares.append(function)
        return function

    def lifespan(self, function: F) -> F:
        """Open the decorated context manager before a worker's jobs, close it after."""
        self._lifespans.append(function)
        return function

    @property
    def lifespans(self) -> tuple[Callable[..., Any], ...]:
        """The lifespan hooks, in the order they were given."""
        return tuple(self._lifespans)

    # ------------------------------------------------------------------------------ submitting

    def enqueue_many(self, calls: Iterable[Call[Any]]) -> list[JobHandle[Any]]:
        """Store calls of any tasks, all or none, in one round trip; a handle for each."""
        return self._submission.submit(calls, "enqueue_many")

    async def aenqueue_many(self, calls: Iterable[Call[Any]]) -> list[JobHandle[Any]]:
        """As `enqueue_many`, without blocking the event loop."""
        return await self._submission.asubmit(calls)

    def submit(self, task: WireTask | Mapping[str, Any] | str | bytes) -> JobHandle[Any]:
        """Store a task of the worker protocol under the id it came with."""
        if in_event_loop():
            self._submission.warn_of_blocking("submit")
        return self._submission.store([self._wire_job(task)])[0]

    async def asubmit(self, task: WireTask | Mapping[str, Any] | str | bytes) -> JobHandle[Any]:
        """As `submit`, without blocking the event loop."""
        return (await self._submission.astore([self._wire_job(task)]))[0]

    def _wire_job(self, value: WireTask | Mapping[str, Any] | str | bytes) -> NewJob:
        task = checked_task(value)
        return wire_job(task, self.registry.get(task.type))

    # --------------------------------------------------------------------------------- looking

    @property
    def store(self) -> Store:
        """The store, opened now if it was not yet."""
        return self._connection.store

    @property
    def insights(self) -> Insights:
        """A read-only view of the store."""
        connection = self._connection
        return Insights(
            connection.store,
            clock=connection.clock,
            scales=self.scales,
            declared=connection.queues,
        )

    def job(self, job_id: str) -> JobHandle[Any]:
        """A handle on a job by its id; nothing is read before one of its verbs is called."""
        return JobHandle(job_id, False, self._connection)

    def tenant(self, tenant: str) -> TenantView:
        """This app as one tenant sees it."""
        return TenantView(tenant, self._submission)

    def explain(self, job_id: str) -> Explanation:
        """Why a job is not running now, or what it does instead."""
        return self.job(job_id).explain()

    async def aexplain(self, job_id: str) -> Explanation:
        """As `explain`, without blocking the event loop."""
        return await self.job(job_id).aexplain()

    # --------------------------------------------------------------------------------- running

    def run(
        self, queues: Iterable[str] | None = None, **options: Unpack[RunOptions]
    ) -> WorkerReport:
        """Run a worker in this process until it is told to stop, or, in a burst, has no more to do.

        Without `queues` it serves all this app knows of. A `config` of the worker protocol says by
        itself which queues, handlers, leases and timeouts there are.
        """
        if in_event_loop():
            raise UsageError(
                "run() starts an event loop, and one is running here: use 'await app.arun()'"
            )
        import asyncio  # noqa: PLC0415 - code that only submits does not pay for it

        return asyncio.run(self.arun(queues, **options))

    async def arun(
        self, queues: Iterable[str] | None = None, **options: Unpack[RunOptions]
    ) -> WorkerReport:
        """As `run`, on the running event loop."""
        from packhorse import logs  # noqa: PLC0415 - as above
        from packhorse.worker import Worker, WorkerParts  # noqa: PLC0415 - as above

        chosen = self._worker_options(queues, options)
        # Trouble is logged, unless somebody has taken it on himself to hear of it.
        silence = None if self.bus.wants(ObserverFailed) else logs.attach(self.bus)
        try:
            await self._connection.adeclare_all()
            parts = WorkerParts(
                store=await self._connection.astore(),
                registry=self.registry,
                bus=self.bus,
                middlewares=tuple(self._middlewares),
                lifespans=self.lifespans,
                clock=self._connection.clock,
                chance=self._chance,
                queues=self._connection.queues,
                app=self,
                origin=self.origin,
                version=worker_version(self.registry, self.code_version),
                link=self.link,
            )
            return await Worker(parts, chosen).run()
        finally:
            if silence is not None:
                silence()

    def consumer(
        self,
        queues: Iterable[str] | None = None,
        *,
        tasks: Iterable[str] | None = None,
        lease: Duration = "30s",
        default_timeout: Duration = "300s",
    ) -> Consumer:
        """The queue for a runtime of one's own: fetch, mark_complete, retry_job, mark_failed.

        Without `queues` it fetches from all this app knows of, without `tasks` jobs of any task,
        also of those that are declared elsewhere.
        """
        from packhorse.consumer import Consumer, consumer_settings  # noqa: PLC0415 - as above

        chosen = self.known_queues if queues is None else queues
        settings = consumer_settings(chosen, tasks, lease=lease, default_timeout=default_timeout)
        return Consumer(self._connection, self._chance, settings, installed_version())

    def _worker_options(
        self, queues: Iterable[str] | None, options: Mapping[str, Any]
    ) -> WorkerOptions:
        if options.get("config") is None:
            return run_options(self.known_queues if queues is None else queues, options)
        config = checked_config(options["config"])
        settings = wire_queues(config, known=self._connection.queues)
        chosen = config_options(config, queues, options)
        add_handlers(self.registry, config)
        for declaration in settings:
            self._connection.declarations.add(declaration)
        return chosen

    @property
    def known_queues(self) -> tuple[str, ...]:
        """The queues declared, those tasks name, and the default one."""
        declared = tuple(self._connection.queues)
        return tuple(dict.fromkeys((*declared, *self.registry.queues, DEFAULT_QUEUE)))

    def close(self) -> None:
        """End waits and close the store, if this app opened it; a later use opens it anew."""
        store = self._connection.close()
        if store is not None and self._own_store:
            store.close()

    async def aclose(self) -> None:
        """As `close`, without blocking the event loop."""
        import asyncio  # noqa: PLC0415 - as above

        await asyncio.to_thread(self.close)


def _opener(url: str | None, clock: Clock | None) -> Callable[[], Store]:
    return lambda: open_store(url or DEFAULT_URL, clock=clock)


def _url_from_environment() -> str | None:
    """The URL, or what stands in the file that is named instead, as secrets are handed over."""
    url, path = os.environ.get(_URL), os.environ.get(_URL_FILE)
    if url and path:
        raise ConfigError(f"{_URL} and {_URL_FILE} are both set; keep one of them")
    if not path:
        return url
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib is slow to import
            text = file.read().strip()
    except OSError as error:
        raise ConfigError(f"{_URL_FILE} names {path!r}, which cannot be read: {error}") from error
    if not text:
        raise ConfigError(f"{_URL_FILE} names {path!r}, which is empty; put the URL in it")
    return text
