# SPDX-License-Identifier: MIT
"""Submit: arguments of the script for new jobs, and the errors for its refusals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn

import msgspec

from packhorse.core.constraints import UNCONSTRAINED, Constraint, are_alike, job_constraints
from packhorse.core.job import JobStatus, NewJob, RateRule
from packhorse.core.policies.rate_limit import check_weight
from packhorse.core.policies.uniqueness import id_conflict
from packhorse.errors import (
    ConfigError,
    IdempotencyMismatch,
    PackhorseError,
    PayloadError,
    QueueClosed,
    QueueFull,
    SchemaOutOfDate,
)
from packhorse.stores.plan import Steps
from packhorse.stores.records import RefusedJob
from packhorse.stores.redis.layout import STATUS, NewJobParts
from packhorse.stores.redis.rows import definition_of, signature_of, stored_trace_id
from packhorse.stores.redis.scripts import LARGE_BYTES, Argument, Script
from packhorse.stores.requests import QueueSettings, Submitted
from packhorse.stores.transfer import rejected

#: Jobs that one submit may bring: they are stored at once, and the server does nothing else.
SUBMITTED_MAX: Final = 20_000

#: Constraints that jobs of one kind may have: tags are part of the definition.
_KNOWN: Final = (UNCONSTRAINED, Constraint.TAGS)

_pack: Final = msgspec.msgpack.Encoder().encode


def submit_steps(
    jobs: Sequence[NewJob], *, fast: bool = True, ids_are_new: bool = False
) -> Steps[tuple[Submitted, ...]]:
    """Store all jobs or none, with one script; see `JobStore.submit`."""
    if not jobs:
        return ()
    if len(jobs) > SUBMITTED_MAX:
        raise ConfigError(
            f"{len(jobs)} jobs were submitted in one call, and Redis stores at most "
            f"{SUBMITTED_MAX} at once; nothing was stored: submit them in parts"
        )
    _refuse_binary(jobs)
    if are_of_one_kind(jobs):
        args = _arguments_of_one_kind(jobs, "new" if ids_are_new else "alike")
    else:
        args = _arguments(jobs)
    large = len(jobs) > 1 and sum([len(new.payload) for new in jobs]) >= LARGE_BYTES
    reply = yield Script("submit", args, fast, large)
    while reply[0] == b"deal":
        yield from deal(reply[1])
        reply = yield Script("submit", args, fast, large)
    if reply == b"ok":
        queued = JobStatus.QUEUED
        return tuple([Submitted(new.id, deduplicated=False, status=queued) for new in jobs])
    problem = reply[0].decode()
    if problem != "ok":
        _refuse(problem, reply[1:], jobs)
    answers = [_answer(new, answer) for new, answer in zip(jobs, reply[2:], strict=True)]
    shed = tuple(job_id.decode() for job_id in reply[1])
    answers[-1] = msgspec.structs.replace(answers[-1], shed=shed)
    return tuple(answers)


def are_of_one_kind(jobs: Sequence[NewJob]) -> bool:
    """Whether the jobs are unconstrained and differ in id and payload only."""
    first = jobs[0]
    if job_constraints(first) not in _KNOWN or is_member(first):
        return False
    if len(jobs) == 1:
        return True
    one_trace = len(set(map(stored_trace_id, jobs))) == 1
    return one_trace and are_alike(jobs) and len({new.id for new in jobs}) == len(jobs)


def is_member(new: NewJob) -> bool:
    """Whether a job is a member of a group: then the store reads its definition when it ends."""
    return new.options is not None and new.options.member is not None


def _arguments_of_one_kind(jobs: Sequence[NewJob], like: str) -> list[Argument]:
    first = jobs[0]
    timeout = "" if first.timeout_us is None else first.timeout_us
    args: list[Argument] = [like, first.queue, first.task, int(first.priority), timeout]
    args.append(definition_of(first))
    for new in jobs:
        args += (new.id, new.payload)
    return args


def _arguments(jobs: Sequence[NewJob]) -> list[Argument]:
    args: list[Argument] = [""]
    for new in jobs:
        args += arguments_of(new)
    return args


def _refuse_binary(jobs: Sequence[NewJob]) -> None:
    """Refuse payloads that are not text: the store could not show them."""
    for new in jobs:
        try:
            new.payload.decode()
        except UnicodeDecodeError:
            raise PayloadError(
                f"the payload of job {new.id} is not UTF-8 text; nothing was stored: "
                "payloads are JSON"
            ) from None


def deal(queue: bytes) -> Steps[None]:
    """Deal passes to the ready jobs of a queue before its first job with a tenant, in parts."""
    more = True
    while more:
        more = yield Script("deal", [queue])


class AdmittedJobs:
    """Jobs that are stored with a change of records; each is refused by itself."""

    def __init__(self, jobs: Sequence[NewJob]) -> None:
        """Refuse jobs that can be refused without asking the store."""
        self._jobs = jobs
        self._refused: dict[int, RefusedJob] = {}  # by the place of the job
        self._asked: list[Argument] = []
        for at, new in enumerate(jobs):
            try:
                _refuse_binary([new])
                self._asked += arguments_of(new)
            except PackhorseError as error:
                self._refused[at] = _refused(new, error)

    @property
    def arguments(self) -> list[Argument]:
        """The parts of jobs to store, then of refused members, which become dead letters."""
        kept = [(self._jobs[at], why) for at, why in self._refused.items()]
        dead = [_dead_letter(new, why) for new, why in kept if is_member(new)]
        return [*self._asked, *(part for each in dead for part in each)]

    def refuse(self, refusals: Sequence[Any]) -> None:
        """Note members that the script refused: the next try stores them as dead letters."""
        left = [at for at in range(len(self._jobs)) if at not in self._refused]
        for number, problem in refusals:
            at = left[number - 1]
            self._refused[at] = _refusal(self._jobs[at], problem)
        left = [at for at in left if at not in self._refused]
        self._asked = [part for at in left for part in arguments_of(self._jobs[at])]

    def answers(self, replies: Sequence[Any]) -> tuple[Submitted | RefusedJob, ...]:
        """The answer for each job, from those of the script for the jobs it was given."""
        each = iter(replies)
        return tuple(
            [
                self._refused[at] if at in self._refused else _result_of(new, next(each))
                for at, new in enumerate(self._jobs)
            ]
        )


def _dead_letter(new: NewJob, refused: RefusedJob) -> list[Argument]:
    """The parts of a refused job, with the error in place of its due time; the script does more."""
    dead = rejected(new, refused.code, refused.reason, 0, QueueSettings(new.queue))
    parts = list(arguments_of(dead.job))
    parts[NewJobParts.__struct_fields__.index("due")] = b"!" + msgspec.json.encode(dead.error)
    return parts


def _result_of(new: NewJob, answer: Any) -> Submitted | RefusedJob:
    if type(answer) is int or answer[0] != b"refused":
        return _answer(new, answer)
    return _refusal(new, answer[1])


def _refusal(new: NewJob, refusal: Sequence[Any]) -> RefusedJob:
    problem, *rest = refusal
    try:
        _refuse(problem.decode(), rest, [new])
    except SchemaOutOfDate:
        raise  # an upgrade ends it; until then neither the job nor its change is stored
    except PackhorseError as error:
        return _refused(new, error)


def _refused(new: NewJob, error: PackhorseError) -> RefusedJob:
    return RefusedJob(new.id, error.code, str(error))


def arguments_of(new: NewJob) -> tuple[Argument, ...]:
    """See `layout.NewJobParts`."""
    check_weight(new.weight)
    ruled = new.unique is not None or new.idempotency is not None or is_member(new)
    due = f"+{new.delay_us}" if new.scheduled_us is None else f"={new.scheduled_us}"
    return (
        new.id,
        definition_of(new),
        new.payload,
        new.queue,
        new.task,
        int(new.priority),
        signature_of(new),
        due,
        "" if new.deadline_us is None else new.deadline_us,
        "" if new.timeout_us is None else new.timeout_us,
        _pack((new.tenant, new.unique, new.idempotency, is_member(new))) if ruled else b"",
    )


def _answer(new: NewJob, answer: Any) -> Submitted:
    if type(answer) is int:
        return Submitted(new.id, deduplicated=False, status=STATUS[answer])
    job_id, status = answer
    return Submitted(job_id.decode(), deduplicated=True, status=STATUS[status])


# ---------------------------------------------------------------------------------- refusals


def _refuse(problem: str, details: Sequence[Any], jobs: Sequence[NewJob]) -> NoReturn:
    """Raise the error for a refusal of the script `submit`."""
    texts: list[Any] = [each.decode() if isinstance(each, bytes) else each for each in details]
    match problem, texts:
        case "shelf", [job_id, queue, shelf_of]:
            raise ConfigError(
                f"job {job_id} was submitted to {queue!r}, which is the dead-letter shelf of "
                f"queue {shelf_of!r}; nothing was stored: submit to another queue"
            )
        case "closed", [queue]:
            raise QueueClosed(queue)
        case "heavy", [weight, most, window_us]:
            check_weight(weight, [RateRule(most, window_us)])
        case "mismatch", [job_id, key]:
            raise _mismatch(job_id, key, jobs)
        case "stranger", [job_id]:
            raise id_conflict(job_id)
        case "full", [queue, depth, limit, reason]:
            raise QueueFull(queue, depth=depth, limit=limit, reason=reason)
        case "older", [worker]:
            raise SchemaOutOfDate(
                f"worker {worker} is of a release that knows no groups of jobs, and would end "
                "their members unseen; nothing was stored: upgrade or stop it first"
            )
    raise AssertionError(f"the store refused a submit as {problem}, and could not say why")


def _mismatch(job_id: str, key: str, jobs: Sequence[NewJob]) -> IdempotencyMismatch:
    rules = ((new.task, new.idempotency) for new in jobs)
    task = next(task for task, rule in rules if rule is not None and rule.key == key)
    return IdempotencyMismatch(
        f"idempotency key {key!r} of task {task!r} belongs to job {job_id}, which "
        "has another payload; nothing was stored: give each payload a key of its own",
        job_id=job_id,
    )
