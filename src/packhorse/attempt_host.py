# SPDX-License-Identifier: MIT
"""Who runs an attempt, as its context sees it: a worker, a process of it, or a direct call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, NoReturn, Protocol, TypeVar

from packhorse.artifacts import MemoryPlace, Place
from packhorse.breaker import BreakerBook
from packhorse.core.clock import SystemClock
from packhorse.core.generators import drive
from packhorse.core.job import JobRecord, NewJob, Progress
from packhorse.core.policies.attachments import Attachments
from packhorse.core.references import Wanted
from packhorse.errors import UsageError

T = TypeVar("T")
#: What `AttemptHost.ask` runs: it is given the store, and yields one plan after another.
Question = Callable[[Any], Generator[Any, Any, T]]


class HostTransaction(Protocol):
    """A transaction that can complete the job of an attempt, as its context sees it."""

    @property
    def connection(self) -> Any:
        """The driver's connection, once it has begun."""
        ...

    @property
    def exclusive(self) -> bool:
        """Whether nothing else can be written to the store meanwhile."""
        ...

    @property
    def committed(self) -> bool:
        """Whether it is, and the job completed."""
        ...

    def check(self, result: Any) -> Any:
        """What `commit` is to be given; raises if the task does not declare such a result."""
        ...

    def begin(self) -> None:
        """Begin it in the caller's thread."""
        ...

    async def abegin(self) -> None:
        """As `begin`, for the running event loop."""
        ...

    def commit(self, completion: Any) -> None:
        """Complete the job and commit; raises if that is not to be, with all of it undone."""
        ...

    async def acommit(self, completion: Any) -> None:
        """As `commit`; one that has begun goes on to its end, and a cancel is raised after it."""
        ...

    def roll_back(self) -> None:
        """Undo all of it."""
        ...

    async def aroll_back(self) -> None:
        """As `roll_back`."""
        ...


class AttemptHost(Protocol):
    """What a context asks of the worker that runs its job."""

    def note_progress(self, progress: Progress) -> None:
        """Store it soon; callable from any thread."""
        ...

    @property
    def breakers(self) -> BreakerBook | None:
        """The circuit breakers of the store; None: there is no store."""
        ...

    @property
    def suspends(self) -> bool:
        """Whether the attempt can end and come back; a function that is called directly cannot."""
        ...

    def now_us(self) -> int:
        """The store's time, nearly, and not behind it."""
        ...

    def passed_us(self) -> int:
        """An instant that the store's clock has passed, nearly its time."""
        ...

    @property
    def place(self) -> Place | None:
        """Where artifacts are kept."""
        ...

    def lease_lost(self) -> bool:
        """Whether others may hold the job by now."""
        ...

    def attach(self, values: dict[str, bytes]) -> bool:
        """Keep values with the job, if this attempt still holds it; says whether it does."""
        ...

    def aattach(self, values: dict[str, bytes]) -> Awaitable[bool]:
        """As `attach`, without blocking the event loop."""
        ...

    def ask(self, asking: Question[T]) -> T:
        """Run the plans that `asking` yields, given the store, in the caller's thread."""
        ...

    async def aask(self, asking: Question[T]) -> T:
        """As `ask`, without blocking the event loop."""
        ...

    def stored(self, store: Any, /) -> Generator[Any, Any, JobRecord | None]:
        """To be asked: what the store knows of the job."""
        ...

    def still_mine(self, store: Any, /) -> Generator[Any, Any, bool]:
        """To be asked: whether this attempt holds the job, and is to go on."""
        ...

    def attachments(self, store: Any, /) -> Generator[Any, Any, Attachments]:
        """To be asked: what is kept with the job."""
        ...

    def transaction(self) -> HostTransaction:
        """A new one, not begun; raises where there is none."""
        ...

    def results(self, wanted: Wanted) -> list[bytes | None]:
        """What other nodes returned, read in the caller's thread; None: they ended without."""
        ...

    async def aresults(self, wanted: Wanted) -> list[bytes | None]:
        """As `results`, without blocking the event loop."""
        ...

    def member_job(self, job: NewJob, payload: bytes) -> NewJob:
        """The job of one item of a batch, made from what its members have in common."""
        ...

    def digest(self, text: str) -> str:
        """A digest of values as a record may keep it."""
        ...

    def flow(self) -> Any:
        """The workflow that the job is a node of; raises where it is none."""
        ...


def _known(answer: T) -> Generator[Any, Any, T]:
    """Answer without a store."""
    yield from ()
    return answer


def _no_store(plan: object) -> NoReturn:
    raise UsageError(f"a handler that is called directly has no store for {plan!r}: submit it")


class DetachedHost:
    """The `AttemptHost` of a context that belongs to no job; steps are kept in memory."""

    suspends = False
    breakers: BreakerBook | None = None

    def __init__(self) -> None:
        self.attached: dict[str, bytes] = {}
        self.place: Place | None = MemoryPlace()
        self.signals: dict[str, tuple[bytes, ...]] = {}

    def note_progress(self, progress: Progress) -> None:
        """There is nowhere to store it."""

    def lease_lost(self) -> bool:
        return False

    def now_us(self) -> int:
        return SystemClock().now_us()

    def passed_us(self) -> int:
        return self.now_us()

    def attach(self, values: dict[str, bytes]) -> bool:
        self.attached |= values
        return not self.lease_lost()

    async def aattach(self, values: dict[str, bytes]) -> bool:
        return self.attach(values)

    def ask(self, asking: Question[T]) -> T:
        return drive(asking(None), _no_store)

    async def aask(self, asking: Question[T]) -> T:
        return self.ask(asking)

    def stored(self, _store: Any, /) -> Generator[Any, Any, JobRecord | None]:
        return _known(None)

    def still_mine(self, _store: Any, /) -> Generator[Any, Any, bool]:
        return _known(not self.lease_lost())

    def attachments(self, _store: Any, /) -> Generator[Any, Any, Attachments]:
        return _known(Attachments(dict(self.attached), self.signals))

    def results(self, wanted: Wanted) -> list[bytes | None]:
        return [None for _ in wanted.nodes]

    async def aresults(self, wanted: Wanted) -> list[bytes | None]:
        return self.results(wanted)

    def member_job(self, job: NewJob, payload: bytes) -> NewJob:
        raise UsageError(
            f"a handler that is called directly adds no {len(payload)} bytes of {job.task}: submit "
            "it"
        )

    def digest(self, text: str) -> str:
        return text

    def flow(self) -> Any:
        raise UsageError("a handler that is called directly is no node of a workflow: start one")

    def transaction(self) -> HostTransaction:
        raise UsageError(
            "a handler that is called directly has no job that ctx.transaction() could complete: "
            "submit it, and let a worker or TestApp.run_jobs() run it"
        )
