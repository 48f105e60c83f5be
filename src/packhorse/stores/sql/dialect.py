# SPDX-License-Identifier: MIT
"""What each SQL store implements itself; the steps in this package are shared.

A query that the shared steps ask for by name has the same parameters and answers with the same
columns in every store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Protocol

from packhorse.core.job import Job, NewJob
from packhorse.core.policies.attachments import Attaching
from packhorse.core.policies.gates import Gate, JobKeys
from packhorse.core.settlement import Settlement
from packhorse.stores.plan import Steps
from packhorse.stores.requests import ClaimRequest
from packhorse.stores.sql.rows import QueueRow, queue_settings
from packhorse.stores.sql.statements import Queries, Rows

#: The columns of a job that its gates depend on.
CANDIDATE_COLUMNS: Final = (
    "seq, id, weight, line, order_line, rank, place, "
    "queue, task, tenant, ordering_key, concurrency_key, rate_key"
)
#: Job number, name, number of the signal (0: a value), and the bytes.
AttachedRow = tuple[int, str, int, bytes]
#: Job id, job number, and how many values and signals are attached.
HeldJob = tuple[str, int, int]
#: The column that identifies jobs, and its type.
Column = Literal["id", "seq"]
COLUMN_TYPES: Final = MappingProxyType({"id": "text", "seq": "bigint"})


def scope(request: ClaimRequest) -> str:
    """Return the condition that narrows a claim to its tenants and priorities."""
    tenants = "and tenant {in_texts :tenants}" if request.tenants else ""
    return f"{tenants} and rank < :beyond" if request.levels else tenants


def read_queues(dialect: Dialect, names: Iterable[str]) -> Steps[dict[str, QueueRow]]:
    """Return the queues of these names, declared or not."""
    rows = yield Rows(dialect.sql("queue_rows"), (dialect.many(list(names)),))
    return {
        name: QueueRow(
            queue_settings(name, settings),
            *(bool(closed), bool(tenanted), bool(shelf), bool(limited_tasks), bool(lined), last),
            store_bytes=queue_settings("", bounding).max_bytes,
        )
        for name, settings, closed, tenanted, shelf, limited_tasks, lined, last, bounding in rows
    }


def no_steps() -> Steps[None]:
    """Do nothing."""
    yield from ()


class Words(Protocol):
    """Statements and their parameters."""

    @property
    def queries(self) -> Queries:
        """The statements of the store."""

    def sql(self, name: str, **parts: str) -> str:
        """The text of a statement, with parts of it filled in."""

    def many(self, values: Sequence[Any]) -> Any:
        """A list as one parameter."""

    def listed(self, value: Any) -> tuple[str, ...]:
        """A list from its column."""

    def write_rows(self, text: str, rows: Sequence[Mapping[str, Any]]) -> Any:
        """The step for a change with each of these rows, which have the names of columns."""

    def keep_attached(self, rows: Sequence[AttachedRow]) -> Steps[None]:
        """Keep values with jobs."""

    def keep_held(self, kept: Sequence[Attaching]) -> Steps[list[HeldJob]]:
        """Attach values to the jobs that are processing with their fences; return those jobs."""


class Keeping(Protocol):
    """How jobs and queues are stored."""

    def extra_columns(self, job: NewJob) -> dict[str, Any]:
        """Return the columns for rare fields."""

    def line_name(self, words: str) -> str:
        """Return the stored name of a line of jobs that share all their gates."""

    def take_places(self, count: int) -> Steps[Sequence[int]]:
        """Take numbers above all that were ever used as sequence or place."""

    def numbers_for(self, jobs: Sequence[NewJob], queues: Mapping[str, QueueRow]) -> Steps[Any]:
        """Return the sequence numbers of new jobs, which are also their places."""

    def insert_rows(
        self, jobs: Sequence[NewJob], seqs: Sequence[int], where: Sequence[Any], now_us: int
    ) -> Steps[int]:
        """Insert the jobs whose id is new, with (status, lane, rank) each; return how many."""

    def keep_bodies(self, jobs: Sequence[NewJob]) -> Steps[None]:
        """Keep the large payloads of jobs just inserted where claims do not write them again."""

    @property
    def beside_jobs(self) -> Sequence[tuple[str, str]]:
        """The tables that hold rows of jobs beside their own, and the columns of job numbers."""

    def counted(self) -> Steps[list[tuple[str, int, int]]]:
        """Return queue, status and number of jobs, where there are any."""

    def counted_some(self, most: int) -> Steps[list[tuple[str, int, int, bool]]]:
        """Count up to `most` jobs per lane, and of completed ones; also whether more may exist."""

    def oldest_ready(
        self, queues: Collection[str], most: int | None = None
    ) -> Steps[dict[str, dict[int, int]]]:
        """Return since when the oldest of the next ready jobs waits, by queue and priority."""


class Moves(Protocol):
    """Changes of many jobs at once."""

    def take(self, request: ClaimRequest, chosen: Mapping[str, Any]) -> Steps[list[Job]]:
        """Hand the next jobs of a queue to a worker without checking gates."""

    def hand_over(self, seqs: Sequence[int], chosen: Mapping[str, Any]) -> Steps[list[Job]]:
        """Hand these jobs to a worker, in this order."""

    def complete(self, completed: Sequence[Settlement], now_us: int) -> Steps[int]:
        """Complete the jobs that are held with these fences; return how many."""

    def shut_until(self, gate: str, task: str, until_us: int) -> Steps[None]:
        """Close the rate gate of a task until an instant; never shorten an earlier closing."""


class Needs(NamedTuple):
    """What may be waiting for attempts to end."""

    lines: bool = False  #: jobs behind the heads of their lines of order
    gates: bool = False  #: jobs behind other gates
    stashed: bool = False  #: jobs, behind the holders of their keys
    limited: bool = False  #: workers or producers may wait for room
    awaited: bool = False  #: a caller waits for the end of a job


class Ends(Protocol):
    """What the end of jobs releases."""

    def holding(self, gates: Sequence[str], tasks: Sequence[str]) -> Steps[list[Any]]:
        """Return the gates that block jobs; wake other claims that wait for these tasks."""

    def wake_waiters(self, column: Column, values: Sequence[int | str]) -> Steps[None]:
        """Wake callers that wait for the end of one of these jobs."""


class PlanLocks(Protocol):
    """How much of the store a plan has locked: all of it, where there is one writer.

    Elsewhere a plan that finds it needs more is rolled back, and begins again with more locked.
    """

    @property
    def alone(self) -> bool:
        """Whether the plan has the whole store for itself."""

    @property
    def unconstrained(self) -> bool:
        """Whether the plan touches unconstrained queues only."""

    @property
    def gated_tasks(self) -> Collection[str]:
        """Tasks whose jobs make their queue a constrained one."""

    def enter(self, *asked: Rows, claims: Sequence[str] = ()) -> Steps[list[list[Any]]]:
        """The first steps of the plan: take its locks, then read what is `asked`.

        It `claims` ready jobs of these queues; begin again if that needs more locks.
        """

    def allow(self, queues: Iterable[str]) -> None:
        """Begin again with more locks, unless these queues are covered."""

    def go_alone(self) -> None:
        """Begin again with the whole store, unless the plan has it already."""

    def mark_lined(
        self, jobs: Iterable[tuple[JobKeys, bool]], queues: Mapping[str, QueueRow]
    ) -> Steps[None]:
        """Note new jobs, each with whether its own keys may let gates block it."""
        del jobs, queues
        return no_steps()

    def asks_gates(self, queue: str) -> bool:  # noqa: ARG002 - any
        """Whether no other plan claims from this queue, so that its gates may be checked."""
        return True

    def covers(self, gate: Gate) -> bool:  # noqa: ARG002 - any
        """Whether the plan may unblock the jobs of this gate."""
        return True


class Neighbours(Protocol):
    """Locks between plans, and what plans tell each other: nothing, where there is one writer."""

    def lock_all(self) -> Steps[None]:
        """Lock the store: first in a plan about more than the jobs and queues it names."""
        return no_steps()

    def outlast_claims(self) -> Steps[None]:
        """Commit, in a plan that has locked the store, and wait for claims that began before that.

        The plan has the store locked again after that, and must not fail any more.
        """
        return no_steps()

    def go_alone(self) -> Steps[PlanLocks]:
        """Do as `lock_all`, for a plan that stores jobs or makes them ready."""

    def lock_records(self, names: Sequence[str]) -> Steps[None]:
        """Lock these records: before all else in a plan that changes them."""
        del names
        return no_steps()

    def settings_changed(self, task: str | None = None) -> Steps[None]:
        """Note that limits have changed; `task` has limits from now on."""
        del task
        return no_steps()

    def back_in_place(self) -> Steps[None]:
        """Note that jobs became ready in places that claims may have passed."""
        return no_steps()


class Dialect(Words, Keeping, Moves, Ends, Neighbours, Protocol):
    """All that one store implements itself."""
