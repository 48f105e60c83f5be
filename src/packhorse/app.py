# SPDX-License-Identifier: MIT
"""The app: where tasks, queues, a store and a worker are put together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import msgspec

from packhorse.batches.changes import single_job
from packhorse.client.alerts import AlertVerbs
from packhorse.client.assembly import connected
from packhorse.client.declarations import queue_declaration
from packhorse.client.registry import DEFAULT_QUEUE, Registry
from packhorse.client.run_options import (
    RunOptions,
    add_handlers,
    config_options,
    run_options,
    worker_version,
)
from packhorse.client.store_access import Connection
from packhorse.client.submission import PreparedJobs, Submission
from packhorse.client.tenant import JobVerbs, TenantView
from packhorse.client.topics import TopicVerbs
from packhorse.client.wire import WireData, checked, submitted_job, wire_queues
from packhorse.core.batches import BATCH_QUEUE
from packhorse.core.clock import Chance, Clock, SystemChance, SystemClock
from packhorse.core.config import WorkerOptions
from packhorse.core.durations import Duration
from packhorse.core.interpreter import in_event_loop
from packhorse.core.job import NewJob
from packhorse.core.options import QueueOptions
from packhorse.core.policies.autoscale import ScaleRule
from packhorse.core.redaction import Redact
from packhorse.core.sizes import Size
from packhorse.core.text import counted
from packhorse.errors import ConfigError, UsageError
from packhorse.events import Event, EventBus
from packhorse.handle import JobHandle
from packhorse.insights import Insights
from packhorse.protocol import Task as WireTask
from packhorse.protocol import WorkerConfig, WorkerRequest
from packhorse.router import Inclusion, Router, caller_line
from packhorse.stores import open_store
from packhorse.stores.protocol import Store
from packhorse.stores.urls import DEFAULT_URL, chosen_url, working_folder
from packhorse.task import Task, TaskDecorator
from packhorse.tools import add_tool
from packhorse.version import installed_version
from packhorse.workflows.verbs import WorkflowVerbs

if TYPE_CHECKING:
    from packhorse.client.encryption import Encryption
    from packhorse.runtime.consumer import Consumer
    from packhorse.runtime.supervisor.link import SupervisorLink
    from packhorse.runtime.worker import WorkerReport
    from packhorse.runtime.worker.hooks import Instrument

__all__ = ["DEFAULT_URL", "Packhorse"]

F = TypeVar("F", bound=Callable[..., Any])


class Packhorse(JobVerbs, AlertVerbs, TopicVerbs, WorkflowVerbs):
    """Tasks, their queues and the store their jobs live in; safe to share between threads.

    url             of the store, else PACKHORSE_URL, else what the file PACKHORSE_URL_FILE
                    names holds, else a SQLite file here; opened when it is first needed
    include         routers, and modules that declare tasks: imported when one is looked up
    store           a ready one, which stays yours to close; with `clock` and `chance` for tests
    spool           a file that keeps submissions while the store is away, to deliver them later
    require_tenant  take no job that belongs to no tenant
    encryption      keys, else those in PACKHORSE_KEYS: with some, arguments, results, errors,
                    steps and signals are encrypted in the store
    redact          returns what may be shown of these, and of exception text
    artifacts       where they lie
    max_bytes       that unfinished jobs of the whole store may have, such as `"2GB"`
    job_logs        the level from which on what handlers log is kept with their jobs, or None
    """

    #: Where relative paths begin, wherever the process goes later; empty if that is gone.
    folder: str
    #: The store's URL, secrets and all, a file's path absolute; None for a store given ready.
    url: str | None
    code_version: str | None = None  #: shown beside its workers; None: a fingerprint
    origin: str | None = None  #: `module:attribute` to import it by, where that is known
    link: SupervisorLink | None = None  #: to the supervisor of this process, if it has one

    def __init__(
        self,
        url: str | None = None,
        *,
        include: Iterable[str | Router] = (),
        store: Store | None = None,
        clock: Clock | None = None,
        chance: Chance | None = None,
        spool: str | os.PathLike[str] | None = None,
        require_tenant: bool = False,
        encryption: Encryption | None = None,
        redact: Redact | None = None,
        artifacts: str | os.PathLike[str] | None = None,
        max_bytes: Size | None = None,
        job_logs: str | None = "info",
    ) -> None:
        self._own_store = store is None
        self._chance = chance or SystemChance()
        self.folder = working_folder()
        self.url = chosen_url(url, self.folder) if store is None else None
        self.registry = Registry()
        self.bus = EventBus(redact=redact, tasks=self.registry)
        connection = connected(
            lambda: open_store(self.url or "", clock=clock) if store is None else store,
            registry=self.registry,
            bus=self.bus,
            clock=clock or SystemClock(),
            spool=None if spool is None else (self.folder, spool),
            encryption=encryption,
        )
        connection.declarations.set_rules(require_tenant=require_tenant, max_bytes=max_bytes)
        super().__init__(connection)
        self._keep(artifacts, job_logs)
        self._middlewares: list[Callable[..., Any]] = []
        self._instruments: list[Instrument] = []  # of `telemetry`
        self._lifespans: list[Callable[..., Any]] = []
        self._tasks: dict[str, Task[..., Any]] = {}
        self._submission = Submission(connection)
        #: `@app.task`, or `@app.task(queue="mail", ...)`: declares a function as a task.
        self.task = TaskDecorator(self._take, self._submission)
        self._inclusion = Inclusion(connection, self._take_from_router)
        self.registry.load = self._inclusion.load
        self.include(*([include] if isinstance(include, str) else include))

    # ------------------------------------------------------------------------------ declaring

    def queue(self, name: str, **options: Unpack[QueueOptions]) -> None:
        """Declare a queue; it is sent to the store before the next submit or run."""
        self._connection.declarations.add(queue_declaration(name, options))

    @property
    def scales(self) -> Mapping[str, ScaleRule]:
        """The queues declared with an `autoscale`, by name."""
        return self._connection.declarations.scales

    def include(self, *tasks: str | Router) -> None:
        """Include routers now, and modules that declare tasks when a task is first looked up."""
        for each in tasks:
            self._inclusion.add(each, caller_line())

    @property
    def known_queues(self) -> tuple[str, ...]:
        """The queues declared, those tasks name, the default one and that of batches."""
        named = (*self._connection.queues, *self.registry.queues, DEFAULT_QUEUE, BATCH_QUEUE)
        return tuple(dict.fromkeys(named))

    @property
    def modules(self) -> tuple[str, ...]:
        """The names of the modules included."""
        return self._inclusion.modules

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The tasks declared, by name."""
        self.registry.load()
        return dict(self._tasks)

    def _take(self, task: Task[..., Any]) -> None:
        self._connection.declarations.check(task.definition)
        self.registry.add(task.definition)
        self._tasks[task.name] = task

    def _take_from_router(self, task: Task[..., Any]) -> None:
        self._take(type(task)(task.definition, self._submission))

    def tool(self, name: str, function: F) -> F:
        """Register a function that handlers may use as `ctx.tools[name]`, if contracts allow it."""
        add_tool(self.registry.tools, name, function)
        return function

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

    def _connect_through(self, connection: Connection) -> Connection:
        """Use another connection from now on, as tests do; returns the one before."""
        before, self._connection = self._connection, connection
        self._submission.connection = connection
        self._inclusion.connect_through(connection)
        return before

    # ------------------------------------------------------------------------------ submitting

    def submit(self, task: WireTask | WorkerRequest | WireData) -> JobHandle[Any]:
        """Store a task of the worker protocol under the id it came with, or a request to a worker.

        A request (`worker_id`, `inputs`, ...) goes to the task whose contract has that id.
        """
        return self._submission.store(self._wire_jobs(task), "submit")[0]

    async def asubmit(self, task: WireTask | WorkerRequest | WireData) -> JobHandle[Any]:
        """As `submit`, without blocking the event loop."""
        return (await self._submission.astore(self._wire_jobs(task)))[0]

    def _wire_jobs(self, value: WireTask | WorkerRequest | WireData) -> PreparedJobs:
        job = submitted_job(value, self.registry, self._connection.declarations)
        return PreparedJobs(self._submission.checked([job]))

    # --------------------------------------------------------------------------------- looking

    @property
    def store(self) -> Store:
        """The store, opened now if it was not yet."""
        return self._connection.store

    def use_store(self, url: str) -> None:
        """Keep jobs in the store of this URL; once the store is in use, that is a `UsageError`."""
        if not self._own_store:
            raise ConfigError("this app was given a store that is open already; leave the URL out")
        if self._connection.opened is not None:
            raise UsageError("the store is in use already; name another one before its first use")
        self.url = chosen_url(url, self.folder)

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

    def tenant(self, tenant: str) -> TenantView:
        """Return this app as one tenant sees it; an empty name is a `ConfigError`."""
        return TenantView(tenant, self._submission)

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
        # Imported late, so that code that only submits starts faster.
        from packhorse.runtime.worker.event_loop import run_to_end  # noqa: PLC0415

        return run_to_end(lambda: self.arun(queues, **options))

    async def arun(
        self, queues: Iterable[str] | None = None, **options: Unpack[RunOptions]
    ) -> WorkerReport:
        """As `run`, on the running event loop."""
        from packhorse import logs  # noqa: PLC0415 - as above
        from packhorse.runtime.worker import Environment, Worker  # noqa: PLC0415 - as above

        self.registry.load()
        chosen = self._worker_options(queues, options)
        with logs.attached(self.bus):
            await self._connection.adeclare_all()
            parts = Environment(
                store=await self._connection.astore(),
                registry=self._worker_registry(),
                bus=self.bus,
                middlewares=tuple(self._middlewares),
                instruments=tuple(self._instruments),
                lifespans=self.lifespans,
                clock=self._connection.clock,
                chance=self._chance,
                queues=self._connection.queues,
                app=self,
                declare=self._connection.declare_all,
                origin=self.origin,
                version=worker_version(self.registry, self.code_version),
                schedules=self._declared_schedules(),
                alerts=self._declared_alerts(),
                subscribers=self._declared_subscribers(),
                link=self.link,
                places=self.places,
                log_level=self._log_level,
                outboxes=self._connection.outboxes,
                traced=self._submission.traced,
                watchers=self._submission.watchers,
            )
            return await Worker(parts, chosen).run()

    def consumer(
        self,
        queues: Iterable[str] | None = None,
        *,
        tasks: Iterable[str] | None = None,
        tenants: Iterable[str] | None = None,
        lease: Duration = "30s",
        default_timeout: Duration = "300s",
    ) -> Consumer:
        """Return a consumer for your own runtime: fetch, mark_complete, retry_job, mark_failed.

        Without `queues` it fetches from all this app knows of, without `tasks` jobs of any task,
        also of those that are declared elsewhere, without `tenants` jobs of every tenant.
        """
        from packhorse.runtime.consumer import Consumer, consumer_settings  # noqa: PLC0415 - as above

        chosen = self.known_queues if queues is None else queues
        settings = consumer_settings(
            chosen, tasks, tenants=tenants, lease=lease, default_timeout=default_timeout
        )
        return Consumer(self._connection, self._chance, settings, installed_version())

    def _member_job(self, job: NewJob, payload: bytes) -> NewJob:
        """Make the job of an item that a handler adds to its batch; for workers."""
        task = self.registry.get(job.task)
        if task is None:
            return msgspec.structs.replace(job, payload=payload)
        return single_job(task, job, payload)

    def _worker_registry(self) -> Registry:
        return self.registry

    def _worker_options(
        self, queues: Iterable[str] | None, options: Mapping[str, Any]
    ) -> WorkerOptions:
        if options.get("config") is None:
            return run_options(self.known_queues if queues is None else queues, options)
        config = checked(WorkerConfig, options["config"])
        settings = wire_queues(config, known=self._connection.queues)
        chosen = config_options(config, queues, options)
        add_handlers(self.registry, config)
        for declaration in settings:
            self._connection.declarations.add(declaration)
        return chosen

    def close(self) -> None:
        """End waits and close the store, if this app opened it; a later use opens it again."""
        store = self._connection.close()
        if store is not None and self._own_store:
            store.close()

    def __repr__(self) -> str:
        # The URL may hold a password, which only an open store knows how to leave out.
        store, scheme = self._connection.opened, (self.url or "").partition("://")[0]
        place = store.label if store is not None else scheme if scheme.isalpha() else "a store"
        return f"<Packhorse on {place}, {counted(len(self._tasks), 'task')}>"

    async def aclose(self) -> None:
        """As `close`, without blocking the event loop."""
        import asyncio  # noqa: PLC0415 - as above

        await asyncio.to_thread(self.close)
