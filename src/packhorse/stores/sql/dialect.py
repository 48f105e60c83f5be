# SPDX-License-Identifier: MIT
"""What each SQL store does in its own way; whatever is not here, they do alike.

A query that the shared steps ask for by name has the same parameters and answers with the same
columns in every store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

from packhorse.core.job import Job, JobRecord, NewJob
from packhorse.core.policies.attachments import Attaching
from packhorse.core.policies.gates import Gate, JobKeys
from packhorse.core.settlement import Settlement
from packhorse.stores.plan import Steps
from packhorse.stores.requests import ClaimRequest
from packhorse.stores.sql.rows import QueueRow
from packhorse.stores.sql.statements import Parameters, Rows

#: What of a job its gates depend on.
CANDIDATE_COLUMNS: Final = (
    "seq, id, weight, line, order_line, rank, place, "
    "queue, task, tenant, ordering_key, concurrency_key, rate_key"
)
#: The number of a job, a name, the number of a signal or 0, and a value to keep with the job.
AttachedRow = tuple[int, str, int, bytes]
#: The id of a job, its number, and how many values and signals are kept with it.
HeldJob = tuple[str, int, int]
#: By which jobs are named.
Column = Literal["id", "seq"]


def scope(request: ClaimRequest) -> str:
    """The condition that leaves alone what a narrow claim does not want."""
    tenants = "and tenant {in_texts :tenants}" if request.tenants else ""
    return f"{tenants} and rank < :beyond" if request.levels else tenants


class Words(Protocol):
    """Statements and their parameters."""

    def sql(self, name: str, **parts: str) -> str:
        """The text of a statement, with parts of it filled in."""
        ...

    def many(self, values: Sequence[Any]) -> Any:
        """A list as one parameter."""
        ...

    def listed(self, value: Any) -> tuple[str, ...]:
        """A list from its column."""
        ...

    def read_each(self, asked: Sequence[Rows]) -> Steps[list[list[Any]]]:
        """The rows of several statements, in as few round trips as may be."""
        ...

    def write(self, text: str, parameters: Parameters = ()) -> Any:
        """The step for a change without an answer."""
        ...

    def write_each(self, text: str, seqs: Sequence[int], now_us: int | None = None) -> Any:
        """The step for one change of each of these jobs."""
        ...

    def write_rows(self, text: str, rows: Sequence[Mapping[str, Any]]) -> Any:
        """The step for a change with each of these rows, which have the names of columns."""
        ...

    def keep_attached(self, rows: Sequence[AttachedRow]) -> Steps[None]:
        """Keep values with jobs."""
        ...

    def keep_held(self, kept: Sequence[Attaching]) -> Steps[list[HeldJob]]:
        """Keep values with those jobs that are processing with their fences, which are returned."""
        ...


class Keeping(Protocol):
    """How jobs and queues lie in the store."""

    @property
    def record_columns(self) -> str:
        """What `read_record` reads."""
        ...

    def read_record(self, row: Sequence[Any], now_us: int, *, bodies: bool = True) -> JobRecord:
        """A job from `record_columns`; without `bodies`, payload and result stay out."""
        ...

    def extra_columns(self, job: NewJob) -> dict[str, Any]:
        """The columns for what few jobs have."""
        ...

    def line_name(self, words: str) -> str:
        """A line of jobs that share all their gates, as it is stored."""
        ...

    def queue_rows(self, queues: Iterable[str]) -> Steps[dict[str, QueueRow]]:
        """The queues of these names, known or not."""
        ...

    def take_places(self, count: int) -> Steps[Sequence[int]]:
        """Take numbers behind all that were ever given out, as sequence or as place."""
        ...

    def numbers_for(self, jobs: Sequence[NewJob], queues: Mapping[str, QueueRow]) -> Steps[Any]:
        """The sequence numbers of new jobs, which are also their places."""
        ...

    def insert_rows(
        self, jobs: Sequence[NewJob], seqs: Sequence[int], where: Sequence[Any], now_us: int
    ) -> Steps[int]:
        """Add those whose id is new, at (status, lane, rank) each; says how many."""
        ...

    def index_rare(self, jobs: Sequence[NewJob], seqs: Sequence[int]) -> Steps[None]:
        """Keep apart what few jobs have, so that jobs without it pay nothing."""
        ...

    def remove(self, seqs: Sequence[int]) -> Steps[int]:
        """Remove jobs with all that belongs to them; says how many."""
        ...

    def counted(self) -> Steps[list[tuple[str, int, int]]]:
        """Queue, status and number of jobs, where there are any."""
        ...

    def counted_some(self, most: int) -> Steps[list[tuple[str, int, int, bool]]]:
        """The same of `most` jobs of a lane, and of those completed; whether there may be more."""
        ...

    def oldest_ready(
        self, queues: Collection[str], most: int | None = None
    ) -> Steps[dict[str, dict[int, int]]]:
        """Per queue and priority, since when the first of the next ready jobs waits."""
        ...


class Promoted(NamedTuple):
    """A due job, and where it stands from now on."""

    seq: int
    suspect: bool
    rank: int
    place: int


class Moves(Protocol):
    """What happens to many jobs at once."""

    def take(self, request: ClaimRequest, chosen: Mapping[str, Any]) -> Steps[list[Job]]:
        """Hand the next jobs of a queue to a worker; no gate is asked."""
        ...

    def candidates(self, request: ClaimRequest, chosen: Mapping[str, Any]) -> Any:
        """The step that reads `CANDIDATE_COLUMNS` of the next jobs of a queue."""
        ...

    def hand_over(
        self, request: ClaimRequest, seqs: Sequence[int], now_us: int
    ) -> Steps[list[Job]]:
        """Hand these jobs to a worker, in this order."""
        ...

    def promote(self, jobs: Sequence[Promoted], now_us: int) -> Any:
        """The step that makes due jobs ready."""
        ...

    def back_in_place(self) -> Steps[None]:
        """Jobs are ready in places that claims may have passed."""
        ...

    def complete(self, completed: Sequence[Settlement], now_us: int) -> Steps[int]:
        """Complete those jobs that are held with these fences; says how many."""
        ...

    def shut_until(self, gate: str, task: str, until_us: int) -> Steps[None]:
        """Close the rate gate of a task for a time; never make an earlier closing shorter."""
        ...


class Needs(NamedTuple):
    """What may wait for attempts to end."""

    lines: bool = False  #: jobs behind the heads of their lines of order
    gates: bool = False  #: jobs behind other gates
    stashed: bool = False  #: jobs, behind the holders of their keys
    limited: bool = False  #: workers or producers may wait for room
    awaited: bool = False  #: a caller waits for the end of a job


class Ends(Protocol):
    """What the end of jobs sets free."""

    def needs(self) -> Steps[Needs]:
        """Ask once for all that an end may have to set free."""
        ...

    def over(self, column: Column, values: Sequence[int | str]) -> Any:
        """The step that reads jobs whose attempt or waiting is over."""
        ...

    def advance_after(self, column: Column, values: Sequence[int | str]) -> Steps[None]:
        """Where these jobs have left their lines of order, the next becomes the head.

        Asked for when nothing but lines waits, if the store's `needs` ever say so.
        """
        ...

    def holding(self, gates: Sequence[str], tasks: Sequence[str]) -> Steps[list[Any]]:
        """Those of the gates that hold jobs back; who else cares for these tasks is woken."""
        ...

    def wake_waiters(self, column: Column, values: Sequence[int | str]) -> Steps[None]:
        """Tell those who wait for one of these jobs that it has finished."""
        ...


class Isolation(Protocol):
    """How much of the store a plan has for itself: all of it, where there is one writer.

    A plan that finds that it has too little is undone, and begins again with more.
    """

    @property
    def alone(self) -> bool:
        """Whether it has everything for itself."""
        ...

    @property
    def unconstrained(self) -> bool:
        """Whether it is about queues only where nothing but priority and arrival decides."""
        ...

    @property
    def gated_tasks(self) -> Collection[str]:
        """Tasks of which a job makes its queue a constrained one."""
        ...

    def enter(self) -> Steps[Any]:
        """The first steps of the plan."""
        ...

    def allow(self, queues: Iterable[str]) -> None:
        """Go on with these queues."""
        ...

    def go_alone(self) -> None:
        """Go on with what concerns more than the jobs and queues the plan names."""
        ...

    def mark_lined(
        self, jobs: Iterable[tuple[JobKeys, bool]], queues: Mapping[str, QueueRow]
    ) -> Steps[None]:
        """Jobs come in, each with whether gates may hold it back for what it says itself."""
        ...

    def asks_gates(self, queue: str) -> bool:
        """Whether no other plan claims from this queue meanwhile, so that gates may be asked."""
        ...

    def covers(self, gate: Gate) -> bool:
        """Whether the plan may let go the jobs that this gate holds back."""
        ...


class Neighbours(Protocol):
    """Which plans run beside each other."""

    def lock_all(self) -> Steps[None]:
        """First in a plan that thinks of more than the jobs and queues it names."""
        ...

    def go_alone(self) -> Steps[Isolation]:
        """As `lock_all`, for a plan that stores jobs or makes them ready."""
        ...

    def lock_records(self, names: Sequence[str]) -> Steps[None]:
        """First of all in a plan that changes these records."""
        ...

    def settings_changed(self, task: str | None = None) -> Steps[None]:
        """After a change of what limits jobs; `task` has limits from now on."""
        ...


class Dialect(Words, Keeping, Moves, Ends, Neighbours, Protocol):
    """One store's own ways."""
