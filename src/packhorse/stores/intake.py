# SPDX-License-Identifier: MIT
"""The intake: requests of users' transactions, until the store admits them.

A user's transaction only appends rows, on its own connection: it reads none of the store's rows and
takes no lock. Once it has committed, the store takes the rows out in its own transaction and admits
them. It deletes the rows that are visible, and keeps no position, so that a transaction that
commits late is not skipped.
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
#: The topic that is woken after a transaction that appended requests.
INTAKE_TOPIC: Final = "intake"
#: How long an alias of a deduplicated job is kept.
ALIAS_KEPT_US: Final = 7 * 24 * 3600 * SECOND_US
#: Longer ids have aliases named by their digests.
_ID_LENGTH_MAX: Final = 200


class IntakeRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request of a user's transaction: to store a job, or to cancel one."""

    job: NewJob | None = None
    cancel: str = ""  #: the id of a job
    tenant: str | None = None  #: only cancel a job of this tenant

    def begun(self, at_us: int) -> IntakeRequest:
        """Return the request with its delay counted from when it was written."""
        job = self.job
        if job is None or not job.delay_us or job.scheduled_us is not None:
            return self
        due = msgspec.structs.replace(job, delay_us=0, scheduled_us=at_us + job.delay_us)
        return IntakeRequest(due)


class _Job(NewJob, frozen=True, omit_defaults=True, gc=False):
    """A job as it is written: without default values."""


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
    """A statement for a user's connection; each `?` is a parameter, a text or a number."""

    text: str
    parameters: tuple[Any, ...] = ()


class Intake(Protocol):
    """What a store offers to be written in users' transactions."""

    @property
    def admits_by_itself(self) -> bool:
        """Whether every plan admits requests first, so that no worker has to."""

    @property
    def family(self) -> Literal["postgresql", "sqlite"]:
        """The kind of database that users' connections must be open on."""

    def probe(self) -> UserStatement:
        """Ask a connection, without harm to its transaction, which store it would write to."""

    def unfit(self, answer: Sequence[Sequence[Any]], own: Any) -> str | None:
        """Return what is wrong with a connection that answered `probe` so; None: nothing.

        `own` is the answer of `identity`.
        """

    def identity(self) -> Plan[Any] | None:
        """Return a plan that identifies this store; None: none is needed."""

    def append(self, requests: Sequence[IntakeRequest]) -> UserStatement:
        """Append requests; no row is added if the store was copied to another one."""

    def notice(self) -> UserStatement | None:
        """Wake workers with the commit; None: a commit cannot do that."""

    def admit(self, *, wait: bool = False, limit: int = ADMITTED_MAX) -> Plan[int]:
        """Admit the requests of committed transactions, in order; return how many.

        Only one process does so at a time; `wait` for it instead of returning. Jobs are stored as
        by `RecordStore.change`. A refused job is stored as dead `rejected`. If another job answers
        for a job, the id of the latter becomes an alias of the former.
        """

    def give_up(self, reason: str, *, keep: bool) -> Plan[None]:
        """Remove the first request, which cannot be admitted; `keep` it as a dead letter."""

    def holder(self, job_id: str) -> Plan[str | None]:
        """Return the id of the job that answered for this one when it was admitted."""

    def wake(self, queues: Sequence[str]) -> None:
        """Wake workers after a commit with requests for these queues."""


def alias_of(job_id: str) -> RecordId:
    """Return the id of the record that keeps which job answered for this one."""
    # Few ids are not valid names of records; those are digested.
    plain = job_id.isascii() and job_id.isprintable() and len(job_id) <= _ID_LENGTH_MAX
    return RecordId("alias", "", job_id if plain else _digest(job_id))


def _digest(job_id: str) -> str:
    import hashlib  # noqa: PLC0415 - for few ids

    return f"sha256:{hashlib.sha256(job_id.encode()).hexdigest()}"


def found_later(intake: Intake, plan: Plan[T], answer: T) -> Asking[T]:
    """Run a verb about an unknown job again after admitting requests, and for its alias."""
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
