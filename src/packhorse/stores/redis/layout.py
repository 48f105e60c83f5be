# SPDX-License-Identifier: MIT
"""The data layout in Redis: key names, fields of a job, order of packed values, codes.

The scripts read the same layout from `lua/layout.lua`, which `python -m scripts.redis_layout`
writes from this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from packhorse.core.job import IdempotencyRule, JobStatus, UniqueRule
from packhorse.core.settlement import Verdict

#: The newest version of the layout that this release knows: with bounds by bytes.
SCHEMA: Final = 3
#: The one that a store has from the first member of a group on.
SCHEMA_OF_GROUPS: Final = 2
#: The one that a store has before anything needs a newer one: older releases may share it so long.
SCHEMA_AT_FIRST: Final = 1

#: Statuses by their stored code.
STATUS: Final[tuple[JobStatus, ...]] = (
    JobStatus.PENDING,
    JobStatus.QUEUED,
    JobStatus.PROCESSING,
    JobStatus.COMPLETED,
    JobStatus.FAILED,
    JobStatus.CANCELLED,
    JobStatus.TIMEOUT,
    JobStatus.DEAD,
)
CODE: Final[Mapping[JobStatus, int]] = MappingProxyType(
    {status: code for code, status in enumerate(STATUS)}
)
#: Verdicts by the code that the scripts answer with.
VERDICTS: Final = (Verdict.APPLIED, Verdict.CANCELLED, Verdict.EXPIRED, Verdict.STALE)

#: Lines of history kept at each end.
HISTORY_EACH_END: Final = 25

#: Key names without the hash tag. Names that end with a colon take a suffix.
#: A pair is a queue and a task, a share is a priority and a queue; see `lua/keys.lua`.
KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "schema": ":schema",
        "numbers": ":n",  # the counter of sequences, places and line numbers
        "job": ":j:",  # <id>: hash, see FIELDS
        "all": ":all",  # job ids by sequence
        "counts": ":counts",  # <status>:<queue>: number of jobs
        "bytes": ":bytes",  # <queue>, and nothing: of unfinished jobs that are counted so
        # Ready jobs: see lua/lines.lua.
        "line": ":l:",  # <queue><task><signature>: ready jobs in claim order
        "group": ":g:",  # <queue><task><gate>: heads of the lines that a gate holds back
        "groups": ":gr:",  # <pair>: gates by the instant at which time opens them
        "gate_pairs": ":gq:",  # <gate>: pairs with lines that it holds back
        "heads": ":lm:",  # <pair>: gate and head of each line
        "ready_tasks": ":t:",  # <queue>: tasks with lines
        "task_queues": ":tq:",  # <task>: queues with lines
        "since": ":since:",  # <queue>: ready jobs that no unconstrained line has, by place
        "suspects": ":sus:",  # <pair>: jobs for a quarantine claim, in claim order
        "suspect_tasks": ":sust:",  # <queue>
        "suspect_queues": ":susq:",  # <task>
        "overdue": ":late:",  # <pair>: jobs that a claim found past their deadline
        "overdue_tasks": ":latet:",  # <queue>
        "parked": ":pk:",  # <pair>: jobs of unknown tasks, by sequence
        "parked_pairs": ":pkt",
        "reopen": ":reopen",  # pairs with groups still to open after a change of settings
        # Jobs in other statuses.
        "due": ":due:",  # <queue>: waiting jobs by the instant they are due
        "due_queues": ":dueq",
        "retries": ":rt:",  # <pair>: those of them that ran before
        "retry_tasks": ":rtt:",  # <queue>
        "deadlines": ":dl",  # waiting jobs by deadline
        "held": ":held:",  # <worker>: processing jobs by the end of their hold
        "holders": ":holders",  # workers that hold jobs
        "expiring": ":exp",  # finished jobs by the instant their record or result expires
        "dead": ":dead",  # dead jobs by sequence
        "droppable": ":shed:",  # <queue>: waiting jobs of a queue that drops, by priority
        # Keys of jobs.
        "unique": ":uniq",
        "idempotency": ":idem",
        "stash": ":stash",  # new jobs that wait for the holder of their unique key
        "order": ":o:",  # <queue><tenant><ordering key>: jobs by line number
        # Queues, tasks, workers.
        "queue": ":q:",  # <queue>: hash of settings and flags
        "queues": ":queues",
        "shelf": ":shelf:",  # <queue>: queues that it is the dead-letter shelf of
        "declared": ":declared",
        "overrides": ":overrides",
        "tasks": ":tasks",  # limits of tasks
        "leases": ":leases",
        "workers": ":workers",
        # Limits and fairness.
        "running": ":busy",  # <gate>: number of running jobs
        "suspended": ":suspended",  # <queue>: number of jobs that wait in a step
        "closed_gates": ":shut",  # <gate>: until when it is closed, empty: until it is resumed
        "closed_until": ":shuts",
        "pauses": ":pauses",  # gates that an operator paused
        "rate_log": ":log:",  # <gate>
        "rate_logs": ":logs",
        "passes": ":pass:",  # <share>: ready jobs by pass
        "running_passes": ":run:",  # <share>: processing jobs by pass
        "last_pass": ":last:",  # <share>: <tenant>: the pass given last
        "highest_pass": ":high",
        "dealt": ":dealt",
        # Records: see lua/records.lua.
        "record": ":rec:",  # <name>: packed
        "records": ":recs",  # names
        "records_in_order": ":reco:",  # <kind>: their orders and names
        "records_expiring": ":recx",  # names by the instant they expire
        "removed_records": ":recv",  # the highest version of a record that is gone
        # The journal: see lua/journal.lua.
        "journal": ":jg",  # groups by the number of their oldest line
        "journal_lines": ":jl:",  # <group>: packed lines by number
        "journal_numbers": ":jn",  # the counter of lines
        "copied": ":copied",  # where the jobs of this store were carried to
        "wake": ":wake:",  # <topic>: channel
    }
)
#: The first letter of a gate's name; `task_concurrency_key` and `task_rate_key` are those of a key.
GATES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "pause": "P",
        "order": "O",
        "task_concurrency": "C",
        "task_concurrency_key": "K",
        "queue_concurrency": "Q",
        "task_rate": "R",
        "task_rate_key": "S",
        "tenant_rate": "T",
        "queue_rate": "U",
    }
)
#: Fields of a job's hash. The history is in fields named `a<attempt>`; others with `<` go on.
FIELDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "state": "s",
        "own": "b",
        "definition": "d",
        "payload": "p",
        "result": "r",
        "error": "e",
        "progress": "o",
        "attempt": "a",
        # What is attached: see lua/attachments.lua.
        "value": "v",  # <name>
        "signal": "g",  # <number>:<name>
        "signals": "n",  # <name>: how many
        "attached": "#n",  # how many of all
        "attached_bytes": "#b",
        "delivered": "#s",  # how many signals
        "delivery": "i",  # <number>: that of a sender
        "waits": "w",  # the fence with which it was left to wait for a signal
        "counted": "k",  # items and failed of the end of a member
        "bytes": "z",  # of the payload, as they were counted
    }
)
#: The fields that `rows.as_record` reads, in this order.
RECORD_FIELDS: Final = tuple(
    FIELDS[name]
    for name in ("state", "definition", "payload", "result", "error", "progress", "own")
)


class SharedState(msgspec.Struct, frozen=True, array_like=True):
    """The changing values that jobs submitted, claimed or settled together have in common.

    The fast routes work out the next state once for all jobs with equal states. What they
    change comes first.
    """

    status: int
    fence: int
    updated_us: int
    worker: str | None
    started_us: int | None
    hold_until_us: int
    alone: bool | None
    timeout_us: int | None
    deadline_us: int | None
    cancel_requested: bool | None
    awaited: bool | None
    attempts: int
    suspect: bool | None
    settled_fence: int | None
    settled_kind: int | None
    finished_us: int | None
    keep_us: int | None
    result_keep_us: int | None
    expires_us: int | None
    has_result: bool | None
    queue: str
    task: str
    signature: str
    keyed: bool | None
    priority: int
    ready_us: int
    failures: int
    crashes: int
    lone_crashes: int
    snoozes: int


class OwnState(msgspec.Struct, frozen=True, array_like=True):
    """The changing values that differ from job to job."""

    sequence: int
    created_us: int
    due_us: int
    place: int | None
    rank: int
    pass_number: int
    line_number: int
    releases: int
    parked_us: int | None
    dead_reason: str | None
    dead_letter: str | None
    result_dropped: bool | None
    holds_line: bool | None


class Definition(msgspec.Struct, frozen=True, array_like=True):
    """What the producer decided, save the payload; never written again."""

    task: str
    queue: str
    priority: int
    tenant: str
    tags: tuple[str, ...]
    timeout_us: int | None
    trace_id: str | None  #: None: see `rows.own_trace_id`
    upstream_request_id: str | None
    created_by: str | None
    options: str | None  #: JSON text
    ordering_key: str | None
    concurrency_key: str | None
    rate_key: str | None
    weight: int
    unique: UniqueRule | None
    idempotency: IdempotencyRule | None


class NewJobParts(msgspec.Struct, frozen=True, array_like=True):
    """A new job as the submit script takes it, and as it is stashed."""

    id: str
    definition: bytes
    payload: bytes
    queue: str
    task: str
    priority: int
    signature: str
    due: str  #: "+" and a delay, or "=" and an instant; "!" and why it is a dead letter
    deadline_us: int | str  #: "" for none
    timeout_us: int | str  #: "" for none
    rules: bytes  #: tenant, unique rule, idempotency rule; empty when there are none


class SettlementParts(msgspec.Struct, frozen=True, array_like=True):
    """A settlement as the settle script takes it, save job, fence and result.

    Behind these, of few settlements, what was counted: items and failed.
    """

    kind: int
    status: int
    delay_us: int
    keep_place: bool
    ended: bool
    failures: int
    crashes: int
    lone_crashes: int
    snoozes: int
    releases: int
    has_result: bool
    error: str | None  #: JSON text
    dead_reason: str | None
    keep_us: int | None
    result_keep_us: int | None
    dead_keep_us: int | None
    suspect: bool
    limit_us: int
    timed_out: bool
    waits: int | None
