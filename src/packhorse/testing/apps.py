# SPDX-License-Identifier: MIT
"""An app under test, on its own store and clock, with methods that run and inspect its jobs.

with use(app) as tested:
    send.enqueue("ada@example.com")
    tested.assert_enqueued(send, {"to": "ada@example.com"})
    tested.run_jobs()
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import msgspec

from packhorse.app import Packhorse
from packhorse.artifacts import MemoryPlace, PlaceSource
from packhorse.client.registry import Registry
from packhorse.client.store_access import Connection
from packhorse.client.submission import Submission
from packhorse.core.batches import is_chunk_member
from packhorse.core.clock import SECOND_US, Clock, from_datetime
from packhorse.core.durations import Duration, microseconds
from packhorse.core.interpreter import in_event_loop
from packhorse.core.job import JobRecord, JobStatus, NewJob
from packhorse.core.job_info import JobInfo, job_info
from packhorse.core.outcome import FOREVER_US
from packhorse.errors import UsageError
from packhorse.handle import JobHandle
from packhorse.runtime.services.service import ServiceContext
from packhorse.runtime.services.ticker import Ticker
from packhorse.stores import open_store
from packhorse.stores.requests import JobFilter, Submitted
from packhorse.task import Task
from packhorse.testing.virtual_clock import VirtualClock

#: Attempts after which `run_jobs` fails.
_ATTEMPTS_MAX: Final = 10_000
#: Longer than any test: its worker must not lose its lease when time jumps.
_LEASE: Final = "36500d"
#: Statuses from which time alone leads on.
_WAITING: Final = (JobStatus.PENDING, JobStatus.FAILED, JobStatus.TIMEOUT)
_PAGE: Final = 500
#: Jobs shown when an assertion fails.
_SHOWN: Final = 10
_TARGET: Final = (
    "name the app to be tested in conftest.py:\n\n"
    "@pytest.fixture\n"
    "def packhorse_target():\n"
    "    return app\n"
)


class TestApp(Packhorse):
    """The same app with more methods; what is declared on one, both have."""

    __test__: ClassVar = False  # pytest must not collect it

    def __init__(self, app: Packhorse) -> None:
        self.__dict__ = app.__dict__

    @property
    def clock(self) -> VirtualClock:
        """The time of this test: `clock.advance(3600)`, or `clock.set(moment)`."""
        clock = self._connection.clock
        if not isinstance(clock, VirtualClock):
            raise UsageError("this app uses the machine's own clock; use it inside use(app)")
        return clock

    # --------------------------------------------------------------------------------- running

    def run_jobs(self, *, max_attempts: int = _ATTEMPTS_MAX) -> int:
        """Run jobs until none is left, also those due later; return the number of attempts.

        Time jumps to the next delay or retry whenever nothing else is left. Every handler runs in
        this process. More attempts than `max_attempts` are an `AssertionError`.
        """
        if in_event_loop():
            raise UsageError(
                "run_jobs() starts an event loop, and one is running here: use 'await "
                "packhorse_app.arun_jobs()'"
            )
        return asyncio.run(self.arun_jobs(max_attempts=max_attempts))

    async def arun_jobs(self, *, max_attempts: int = _ATTEMPTS_MAX) -> int:
        """As `run_jobs`, on the running event loop."""
        attempts = 0
        due_us: int | None = 0
        while due_us is not None:
            self.clock.advance(max(0, due_us - self.clock.now_us()) / SECOND_US)
            attempts += await self._run_due(max_attempts - attempts + 1)
            if attempts > max_attempts:
                raise AssertionError(
                    f"run_jobs() began more than {max_attempts} attempts and jobs are left; does "
                    "one submit itself, or snooze, without end? Or give a larger max_attempts"
                )
            due_us = await self._next_due_us()
        return attempts

    def run_for(self, span: Duration, *, max_attempts: int = _ATTEMPTS_MAX) -> int:
        """Let virtual time pass: fire schedules and run jobs as they are due; return the attempts.

        Time jumps from one fire or due job to the next, so that a day takes no longer than what
        happens in it.
        """
        if in_event_loop():
            raise UsageError(
                "run_for() starts an event loop, and one is running here: use 'await "
                "packhorse_app.arun_for()'"
            )
        return asyncio.run(self.arun_for(span, max_attempts=max_attempts))

    async def arun_for(self, span: Duration, *, max_attempts: int = _ATTEMPTS_MAX) -> int:
        """As `run_for`, on the running event loop."""
        end_us = self.clock.now_us() + microseconds(span, setting="run_for()")
        ticker = self._ticker()
        attempts = 0
        while True:
            await ticker.run_once()  # once to declare and fire
            attempts += await self._run_due(max_attempts - attempts + 1)
            if attempts > max_attempts:
                raise AssertionError(
                    f"run_for({span!r}) began more than {max_attempts} attempts; does a schedule "
                    "fire too often? Or give a larger max_attempts"
                )
            fires = [each.next_at for each in await self.schedules.aall()]
            instants = [from_datetime(each) for each in fires if each is not None]
            due_us = await self._next_due_us()
            next_us = min((each for each in (*instants, due_us) if each is not None), default=None)
            if next_us is None or next_us > end_us:
                self.clock.advance(max(0, end_us - self.clock.now_us()) / SECOND_US)
                return attempts
            self.clock.advance(max(0, next_us - self.clock.now_us()) / SECOND_US)

    def _ticker(self) -> Ticker:
        return Ticker(
            ServiceContext(self.store, self.clock, self._chance, self.bus, "run_for"),
            schedules=self._declared_schedules(),
            traced=self._submission.traced,
        )

    async def _run_due(self, max_attempts: int) -> int:
        store = await self._connection.astore()
        counts = await store.arun(store.inspection.counts())
        report = await self.arun(
            tuple(dict.fromkeys((*self.known_queues, *(each.queue for each in counts)))),
            burst=True,
            max_jobs=max_attempts,
            lease=_LEASE,
            handle_signals=False,
        )
        ended = (report.processed, report.snoozed, report.limited, report.cancelled)
        return sum(ended) + report.released

    async def _next_due_us(self) -> int | None:
        records = await asyncio.to_thread(self._records, JobFilter(statuses=_WAITING))
        now_us = self.clock.now_us()
        far_us = now_us + FOREVER_US // 2  # those that only a signal wakes
        due = (each.due_us for each in records if now_us < each.due_us < far_us)
        return min(due, default=None)

    def _worker_registry(self) -> Registry:
        # Another process would import the app with its real store.
        return self.registry.in_process()

    # ---------------------------------------------------------------------------------- eagerly

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Run every job by `run_jobs` before `enqueue` returns, also those that jobs submit."""
        connection = _EagerConnection(self._connection, self._run_submitted, self.arun_jobs)
        before = self._connect_through(connection)
        try:
            yield
        finally:
            self._connect_through(before)
            connection.close()

    def _run_submitted(self) -> None:
        if not in_event_loop():
            self.run_jobs()
            return
        failed: list[BaseException] = []
        thread = threading.Thread(target=lambda: _caught(self.run_jobs, failed))
        thread.start()
        thread.join()  # it blocks the event loop, as `enqueue` does
        for error in failed:
            raise error

    # ---------------------------------------------------------------------------------- looking

    def assert_enqueued(
        self,
        task: Task[..., Any] | str,
        arguments: Mapping[str, Any] | None = None,
        *,
        count: int | None = None,
        **fields: Any,
    ) -> list[JobHandle[Any]]:
        """Return the jobs of a task that this test submitted; fail if none, or not `count`.

        `arguments` selects jobs by some of their arguments, `fields` by fields of `JobInfo`, such
        as `queue="mail"`.
        """
        __tracebackhide__ = True  # of no use to a reader of the failure
        unknown = sorted(fields.keys() - set(JobInfo.__struct_fields__))
        if unknown:
            raise UsageError(f"assert_enqueued(): JobInfo has no field {unknown[0]!r}")
        name = task if isinstance(task, str) else task.name
        inspection, run = self.store.inspection, self.store.run
        whole = (run(inspection.job(each.id)) for each in self._records(JobFilter(task=name)))
        records = [each for each in whole if each is not None]
        found = [each for each in records if self._is_so(each, arguments or {}, fields)]
        if len(found) != count if count is not None else not found:
            wanted = "one" if count is None else str(count)
            told = ", ".join(f"{key}={value!r}" for key, value in fields.items())
            chosen = " ".join(filter(None, [str(dict(arguments)) if arguments else "", told]))
            raise AssertionError(
                f"expected {wanted} of {name} {chosen}".rstrip()
                + f", and {len(found)} were submitted; of this task there are {len(records)}"
                + "".join(
                    f"\n  {self._arguments(each)} in {each.queue}" for each in records[:_SHOWN]
                )
                + self._if_foreign(task)
            )
        return [self.job(each.id) for each in found]

    def _if_foreign(self, task: Task[..., Any] | str) -> str:
        if isinstance(task, str) or self.registry.get(task.name) is task.definition:
            return ""
        return f"\nthis app does not have task {task.name}, another one does; {_TARGET}"

    def _is_so(
        self, record: JobRecord, arguments: Mapping[str, Any], fields: Mapping[str, Any]
    ) -> bool:
        given, info = self._arguments(record), job_info(record)
        return all(
            key in given and given[key] == value for key, value in arguments.items()
        ) and all(getattr(info, key) == value for key, value in fields.items())

    def _records(self, chosen: JobFilter) -> list[JobRecord]:
        """Read all matching jobs, oldest first, without payloads."""
        inspection, run = self.store.inspection, self.store.run
        page = run(inspection.search(chosen, limit=_PAGE))
        found = list(page.jobs)
        while page.after is not None:
            page = run(inspection.search(chosen, limit=_PAGE, after=page.after))
            found += page.jobs
        return found[::-1]

    def _arguments(self, record: JobRecord) -> Mapping[str, Any]:
        """Decode arguments as the handler gets them; as JSON data if the task is not known."""
        definition = self.registry.get(record.task)
        is_whole = definition is None or definition.signature.whole
        if definition is not None and not is_whole and not is_chunk_member(record.options):
            return definition.typed_arguments(record.payload)
        decoded = msgspec.json.decode(record.payload)
        return decoded if isinstance(decoded, dict) else {}

    # ---------------------------------------------------------------------------------- setting

    @contextmanager
    def on_store(self, url: str, clock: Clock) -> Iterator[None]:
        """Connect the app to this store and clock."""
        declarations = self._connection.declarations
        store = open_store(url, clock=clock)
        connection = Connection(lambda: store, registry=self.registry, bus=self.bus, clock=clock)
        connection.declarations, declarations.told = declarations, 0
        place = MemoryPlace()
        connection.places = PlaceSource(lambda: place, chosen=self.places.chosen)
        before = self._connect_through(connection)
        try:
            yield
        finally:
            self._connect_through(before)
            connection.close()
            store.close()
            declarations.told = 0

    def release(self) -> None:
        """Release the routers this app includes, so that another app can include them."""
        self._inclusion.release()


@contextmanager
def use(
    app: Packhorse, url: str = "memory://", *, clock: VirtualClock | None = None
) -> Iterator[TestApp]:
    """Connect an app, with its tasks and routers, to another store and a virtual clock in a block.

    Its own store is neither opened nor touched.
    """
    tested = TestApp(app)
    with tested.on_store(url, clock or VirtualClock()):
        yield tested


def connection_under_test(submission: Submission) -> Connection:
    """Return the connection to submit through; refuse that of an app which is not under test."""
    connection: Connection = vars(submission)["connection"]
    if not isinstance(connection.clock, VirtualClock):
        raise UsageError(
            "a task was used whose app is not under test, and nothing was stored: packhorse_app "
            f"tests one app, an empty one unless it is told which; {_TARGET}\nA test of several "
            "apps puts each of the others on a store of its own, with packhorse.testing.use(app)"
        )
    return connection


class _EagerConnection(Connection):
    """Run submitted jobs before `submit` returns."""

    def __init__(
        self,
        base: Connection,
        run: Callable[[], object],
        arun: Callable[[], Awaitable[object]],
    ) -> None:
        super().__init__(lambda: base.store, registry=base.registry, bus=base.bus, clock=base.clock)
        self.declarations = base.declarations
        self._run_jobs = run
        self._arun_jobs = arun
        self._running = False  # jobs that a job submits are run by the same run

    def submit(
        self, jobs: Sequence[NewJob], *, wait_us: int | None = None, ids_are_new: bool = False
    ) -> tuple[Submitted, ...]:
        answers = super().submit(jobs, wait_us=wait_us, ids_are_new=ids_are_new)
        if not self._running:
            with self._as_outermost():
                self._run_jobs()
        return answers

    async def asubmit(
        self, jobs: Sequence[NewJob], *, wait_us: int | None = None, ids_are_new: bool = False
    ) -> tuple[Submitted, ...]:
        answers = await super().asubmit(jobs, wait_us=wait_us, ids_are_new=ids_are_new)
        if not self._running:
            with self._as_outermost():
                await self._arun_jobs()
        return answers

    @contextmanager
    def _as_outermost(self) -> Iterator[None]:
        self._running = True
        try:
            yield
        finally:
            self._running = False


def _caught(action: Callable[[], object], failed: list[BaseException]) -> None:
    try:
        action()
    except BaseException as error:  # noqa: BLE001 - raised again where it was waited for
        failed.append(error)
