# SPDX-License-Identifier: MIT
"""One job for one key: who holds a key, and what a submit that meets a holder comes to.

Both kinds of keys belong to a (tenant, task). The holder of a key is the last job that took it, by
submit or redrive, for as long as that job's own rule says so; a job that has lost its key does
not take it back by waiting again.

| on_conflict     | the holder waits                      | it runs                 | it is over |
| --------------- | ------------------------------------- | ----------------------- | ---------- |
| reject          | answer it                             | answer it               | answer it  |
| throttle        | answer it                             | answer it               | answer it  |
| replace         | give it the payload                   | answer it               | answer it  |
| preserve_run_at | give it the payload                   | answer it               | answer it  |
| debounce        | give it the payload, and a new due    | answer it               | answer it  |
| keep_latest     | give it the payload                   | stash the new job       | answer it  |

"Over" is met in a window only. At most one job is stashed behind a holder, the newest; it is
submitted when the holder ends, and forgotten when the holder is given a newer payload.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, assert_never

import msgspec

from packhorse.core.durations import span_text
from packhorse.core.job import (
    TERMINAL,
    WAITING,
    IdempotencyRule,
    JobStatus,
    NewJob,
    OnConflict,
    UniqueRule,
    UniqueScope,
)
from packhorse.core.sealing import key_of
from packhorse.errors import ConfigError, JobConflict

#: (tenant, task, key): what a key belongs to. Unique and idempotency keys never meet.
Identity = tuple[str, str, str]
#: The kind of a key, `unique` or `idempotency`, and what it belongs to.
JobKey = tuple[str, Identity]


class KeyRules(Protocol):
    """The rules of a job's keys; a `NewJob` has them."""

    @property
    def unique(self) -> UniqueRule | None: ...
    @property
    def idempotency(self) -> IdempotencyRule | None: ...


#: What a submit may do to the payload of a job that is there.
_REPLACING: Final = frozenset(
    {
        OnConflict.REPLACE,
        OnConflict.DEBOUNCE,
        OnConflict.PRESERVE_RUN_AT,
        OnConflict.KEEP_LATEST,
    }
)


class KnownJob(NamedTuple):
    """As much of a stored job as tells whether a submit of its id means that job."""

    task: str
    tenant: str
    payload: str | bytes
    unique: UniqueRule | None


def refuse_strangers(jobs: Iterable[NewJob], known: Mapping[str, KnownJob]) -> None:
    """Of jobs submitted together, those whose id is known or comes twice must be the same job.

    Looked at before all else, so that every store refuses the same one.
    """
    seen: dict[str, KnownJob] = dict(known)
    for new in jobs:
        was = seen.setdefault(new.id, KnownJob(new.task, new.tenant, new.payload, new.unique))
        _refuse_stranger(was, new)


def _refuse_stranger(known: KnownJob, new: NewJob) -> None:
    """A known id is the same job again, or a `JobConflict`, which tells nothing of the other.

    The payload of a job with a rule that replaces it may be another one by now, and is not
    compared.
    """
    same = (known.task, known.tenant) == (new.task, new.tenant)
    if same and (may_replace(known.unique) or _same_json(known.payload, new.payload)):
        return
    raise id_conflict(new.id)


def may_replace(rule: UniqueRule | None) -> bool:
    """Whether the payload of a job with this rule may become that of another job."""
    return rule is not None and rule.on_conflict in _REPLACING


def id_conflict(job_id: str) -> JobConflict:
    """The refusal of a job whose id is another's."""
    return JobConflict(
        f"the id {job_id!r} belongs to another job, of another task, tenant or payload; nothing "
        "was stored: give this job an id of its own, or repeat the call that made it",
        job_id=job_id,
    )


def _same_json(one: str | bytes, other: str | bytes) -> bool:
    """Whether two payloads say the same, in whatever order their names stand.

    Those sealed with different keys cannot be compared, and count as the same, as digests do.
    """
    if one == other or key_of(one) != key_of(other):
        return True
    try:
        return bool(msgspec.json.decode(one) == msgspec.json.decode(other))
    except (msgspec.DecodeError, RecursionError):
        return False


def unique_identity(job: NewJob) -> Identity | None:
    """The unique key of a job, if it has one."""
    return None if job.unique is None else (job.tenant, job.task, job.unique.key)


def idempotency_identity(job: NewJob) -> Identity | None:
    """The idempotency key of a job, if it has one."""
    return None if job.idempotency is None else (job.tenant, job.task, job.idempotency.key)


def identities_of(tenant: str, task: str, rules: KeyRules) -> list[JobKey]:
    """The keys of a job with these rules."""
    keys = (("unique", rules.unique), ("idempotency", rules.idempotency))
    return [(kind, (tenant, task, rule.key)) for kind, rule in keys if rule is not None]


def keys_wanted(job: NewJob) -> list[JobKey]:
    """The keys of a job that is not stored yet."""
    return identities_of(job.tenant, job.task, job)


def holds_key(
    kind: str, rules: KeyRules, status: JobStatus, *, created_us: int, now_us: int
) -> bool:
    """Whether the last job that took a key still holds it, by its own rules."""
    same = rules.idempotency
    if kind == "idempotency" and same is not None:
        return holds_idempotency_key(same, status, created_us=created_us, now_us=now_us)
    rule = rules.unique
    if kind == "unique" and rule is not None:
        return holds_unique_key(rule, status, created_us=created_us, now_us=now_us)
    return False


def holds_unique_key(rule: UniqueRule, status: JobStatus, *, created_us: int, now_us: int) -> bool:
    """Whether the last job that took a unique key still holds it."""
    match rule.scope:
        case UniqueScope.UNTIL_STARTED:
            return status in WAITING
        case UniqueScope.UNTIL_FINISHED:
            return status not in TERMINAL
        case UniqueScope.WINDOW:
            given_up = status in (JobStatus.CANCELLED, JobStatus.DEAD)
            return not given_up and now_us < created_us + (rule.window_us or 0)
        case _:
            assert_never(rule.scope)


def holds_idempotency_key(
    rule: IdempotencyRule, status: JobStatus, *, created_us: int, now_us: int
) -> bool:
    """Whether the last job that took an idempotency key still holds it.

    An unfinished one always; a completed one until the window from its submit is over; a dead or
    cancelled one never.
    """
    if status is JobStatus.COMPLETED:
        return now_us < created_us + rule.window_us
    return status not in TERMINAL


def same_payload(theirs: str, ours: str) -> bool:
    """Whether two digests are of the same payload.

    Digests that were made in different ways, by different releases, cannot be compared; they
    count as the same, since a mismatch is a mistake of the caller that must be certain.
    """
    return theirs == ours or _way(theirs) != _way(ours)


def _way(digest: str) -> str:
    """How a digest was made: what stands before its colon; the first release wrote none."""
    return digest.rpartition(":")[0]


class Conflict(StrEnum):
    """What a submit comes to that meets a holder of its unique key."""

    ANSWER = "answer"  #: the holder is the answer, and stays as it is
    REPLACE = "replace"  #: the holder gets the new payload; place and due stay
    RESCHEDULE = "reschedule"  #: it gets the payload and the new due, and loses its place
    STASH = "stash"  #: the new job waits outside until the holder ends


def conflict(on_conflict: OnConflict, holder: JobStatus) -> Conflict:
    """What becomes of a new job, by its own rule and where the holder stands."""
    if holder is JobStatus.PROCESSING and on_conflict is OnConflict.KEEP_LATEST:
        return Conflict.STASH
    if holder not in WAITING:
        return Conflict.ANSWER
    match on_conflict:
        case OnConflict.REJECT | OnConflict.THROTTLE:
            return Conflict.ANSWER
        case OnConflict.DEBOUNCE:
            return Conflict.RESCHEDULE
        case OnConflict.REPLACE | OnConflict.PRESERVE_RUN_AT | OnConflict.KEEP_LATEST:
            return Conflict.REPLACE
        case _:
            assert_never(on_conflict)


def record_until_us(
    unique: UniqueRule | None, idempotency: IdempotencyRule | None, *, created_us: int
) -> int:
    """Until when a completed job's record must be kept, because it may still hold a key."""
    windows = [0]
    if unique is not None and unique.scope is UniqueScope.WINDOW:
        windows.append(unique.window_us or 0)
    if idempotency is not None:
        windows.append(idempotency.window_us)
    return created_us + max(windows)


def result_until_us(idempotency: IdempotencyRule | None, *, created_us: int) -> int:
    """Until when a completed job's result must be kept, because a submit may be answered by it."""
    return created_us + (0 if idempotency is None else idempotency.window_us)


def at_least_us(keep_us: int | None, until_us: int, *, finished_us: int) -> int | None:
    """A lifetime from the end of a job, made long enough to last until an instant."""
    return None if keep_us is None else max(keep_us, until_us - finished_us)


def check_unique(rule: UniqueRule) -> None:
    """Refuse a rule whose parts contradict each other."""
    windowed = rule.scope is UniqueScope.WINDOW
    problems = [
        (not rule.key, "its key is empty; give a text, or a function of the arguments"),
        (
            rule.scope not in tuple(UniqueScope),
            f"scope is {rule.scope!r}; give 'until_started', 'until_finished' or 'window'",
        ),
        (
            rule.on_conflict not in tuple(OnConflict),
            (
                f"on_conflict is {rule.on_conflict!r}; give one of "
                f"{', '.join(repr(str(mode)) for mode in OnConflict)}"
            ),
        ),
        (
            rule.on_conflict is OnConflict.THROTTLE and not windowed,
            (
                f"on_conflict is 'throttle' and scope is '{rule.scope}': it holds off for a span "
                "of time; set scope='window' and window, or on_conflict='reject'"
            ),
        ),
        (
            windowed and (rule.window_us is None or rule.window_us < 1),
            "scope is 'window' without a window longer than zero; set window, such as '10m'",
        ),
        (
            not windowed and rule.window_us is not None,
            (
                f"window is set and scope is '{rule.scope}', which does not look at it; "
                "set scope='window', or leave window out"
            ),
        ),
    ]
    for wrong, message in problems:
        if wrong:
            raise ConfigError(f"unique: {message}")


def check_idempotency(window_us: int, *, result_keep_us: int | None) -> None:
    """Refuse a window that outlives the result it answers with; None keeps results for ever."""
    if window_us < 1:
        raise ConfigError(
            f"the idempotency window is {window_us} microseconds; give a span longer than zero"
        )
    if result_keep_us is not None and window_us > result_keep_us:
        raise ConfigError(
            f"the idempotency window is {span_text(window_us)}, and results are kept for "
            f"{span_text(result_keep_us)}: a repeated submit would be answered by a job whose "
            "result is gone; shorten the window, or raise result_ttl"
        )
