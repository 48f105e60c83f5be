# SPDX-License-Identifier: MIT
"""The intake: what users' transactions ask for lies there until the store admits it.

A user's transaction only appends rows, on its own connection: it reads no row of ours and takes no
lock. Once it has committed, the store takes the rows out in a transaction of its own, and does what
they ask for. Rows are taken by deleting those that are visible, never by a position: one that
commits late is not passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from packhorse.core.clock import SECOND_US
from packhorse.core.job import NewJob
from packhorse.core.policies.records import RecordId
from packhorse.stores.plan import Asking, Plan

T = TypeVar("T")

#: Requests admitted in one transaction of the store.
ADMITTED_MAX: Final = 500
#: Told after a transaction that has asked for something.
INTAKE_TOPIC: Final = "intake"
#: How long the id of a job that was answered by another one leads to that one.
ALIAS_KEPT_US: Final = 7 * 24 * 3600 * SECOND_US
#: Longer ids are found by their digests.
_ID_LENGTH_MAX: Final = 200


class IntakeRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a user's transaction asks for: a job, or the cancel of one."""

    job: NewJob | None = None
    cancel: str = ""  #: the id of a job
    tenant: str | None = None  #: only if that job is this one's

    def begun(self, at_us: int) -> IntakeRequest:
        """The request as it was meant when it was written: delays begin then."""
        job = self.job
        if job is None or not job.delay_us or job.scheduled_us is not None:
            return self
        due = msgspec.structs.replace(job, delay_us=0, scheduled_us=at_us + job.delay_us)
        return IntakeRequest(due)


class _Job(NewJob, frozen=True, omit_defaults=True, gc=False):
    """As it is written: without what most jobs leave as it is."""


_request: Final = msgspec.json.Decoder(IntakeRequest)
_encode: Final = msgspec.json.Encoder().encode
_values_of: Final = msgspec.structs.astuple


def written_request(request: IntakeRequest) -> str:
    """The JSON text of a request."""
    job = request.job
    return _encode(request if job is None else IntakeRequest(_Job(*_values_of(job)))).decode()


def written_requests(requests: Sequence[IntakeRequest]) -> str:
    """The JSON text of a list of requests."""
    return f"[{','.join(map(written_request, requests))}]"


def read_request(text: str, at_us: int) -> IntakeRequest:
    """A request from its row."""
    return _request.decode(text).begun(at_us)


class UserStatement(NamedTuple):
    """A statement for a user's connection; each `?` is a parameter, which are texts and numbers."""

    text: str
    parameters: tuple[Any, ...] = ()


class Intake(Protocol):
    """What a store that can be written in users' transactions offers for it."""

    @property
    def admits_by_itself(self) -> bool:
        """Whether every plan admits first, so that no worker has to look after the intake."""
        ...

    @property
    def family(self) -> Literal["postgresql", "sqlite"]:
        """The database that a connection must be of."""
        ...

    def probe(self) -> UserStatement:
        """Ask a connection, without harm to its transaction, which store it would write to."""
        ...

    def unfit(self, answer: Sequence[Sequence[Any]], own: Any) -> str | None:
        """What is wrong with a connection that answered this; None: it writes to this store.

        `own` is what `identity` answered.
        """
        ...

    def identity(self) -> Plan[Any] | None:
        """Which store this is, by its own connection; None: that need not be asked."""
        ...

    def append(self, requests: Sequence[IntakeRequest]) -> UserStatement:
        """Add requests; it changes no row if the store was copied to another one."""
        ...

    def notice(self) -> UserStatement | None:
        """Wake workers with the commit; None: it cannot carry a wake-up."""
        ...

    def admit(self, *, wait: bool = False, limit: int = ADMITTED_MAX) -> Plan[int]:
        """Do what committed transactions ask for, in order; says how many requests those were.

        Only one process does so at a time. `wait`: until it is done, instead of leaving it to that.
        Jobs are stored as by `RecordStore.change`. One that is refused is dead `rejected`. Where
        another job answers for one, its id becomes another name of that job.
        """
        ...

    def give_up(self, reason: str, *, keep: bool) -> Plan[None]:
        """Take out the first request, which cannot be admitted; `keep`: as a dead letter."""
        ...

    def holder(self, job_id: str) -> Plan[str | None]:
        """The id of the job that answered for this one when it was admitted."""
        ...

    def wake(self, queues: Sequence[str]) -> None:
        """Tell workers of a commit that asks for something in these queues."""
        ...


def alias_of(job_id: str) -> RecordId:
    """The record that leads from the id of a job to the one that answered for it."""
    # What is no name of a record, which few ids are, is found by its digest.
    plain = job_id.isascii() and job_id.isprintable() and len(job_id) <= _ID_LENGTH_MAX
    return RecordId("alias", "", job_id if plain else _digest(job_id))


def _digest(job_id: str) -> str:
    import hashlib  # noqa: PLC0415 - for few ids

    return f"sha256:{hashlib.sha256(job_id.encode()).hexdigest()}"


def found_later(intake: Intake, plan: Plan[T], answer: T) -> Asking[T]:
    """The answer of a verb about one job once the intake was looked at, should it be missed."""
    named = plan.named
    if named is None or not named.missed(answer):
        return answer
    if (yield intake.admit(wait=True)):
        answer = yield plan
        if not named.missed(answer):
            return answer
    holder: str | None = yield intake.holder(named.job_id)
    if holder is not None:
        answer = yield named.again(holder)
    return answer
