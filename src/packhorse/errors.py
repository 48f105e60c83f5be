# SPDX-License-Identifier: MIT
"""Every error Packhorse raises, in one tree; catch `PackhorseError` to catch them all.

    PackhorseError
    ├── ConfigError                 a setting or declaration that cannot work
    │   └── ShapeError              a wire object that breaks the worker protocol (has .path)
    ├── ContractError               a task broke, or was asked to break, its contract (has .field)
    │   ├── BudgetExceeded          the job has spent more than it may (has .spent, .limit)
    │   ├── ToolNotAllowed          its contract does not name the tool (has .tool, .allowed)
    │   └── ToolNotFound            no such tool is registered (has .tool)
    ├── PayloadError                arguments or a result that cannot be carried (has .field)
    ├── JobError                    something about one job (has .job_id)
    │   ├── JobNotFound             no such job here
    │   ├── JobDead                 the job will not run again by itself (has .reason, .error)
    │   ├── JobCancelled            the job was cancelled
    │   ├── JobConflict             the job is in a state that refuses the request
    │   ├── IdempotencyMismatch     the same key was used with another payload
    │   ├── KeyUnavailable          it is encrypted, and its key is not here (has .key)
    │   ├── StepRefused             another worker may hold the job: nothing was kept
    │   ├── TransactionRefused      the job cannot be completed by it: nothing was kept
    │   ├── ArtifactError           an artifact is gone or damaged, or was not taken
    │   └── ResultTimeout           no result yet; also a TimeoutError
    ├── QueueFull                   queue or store is full (has .queue, .depth, .limit, .reason)
    ├── QueueClosed                 the queue takes no new jobs for now (has .queue)
    ├── ScheduleNotFound            the store holds no such schedule (has .name)
    ├── StepMismatch                the steps of a job are not those of an earlier attempt
    ├── StepTimeout                 a step took longer than it may; also a TimeoutError
    ├── WaitTimeout                 the signal did not come in time; also a TimeoutError
    ├── StoreError                  the store could not do what was asked
    │   ├── StoreUnavailable        it cannot be reached now (has .job_id, .maybe_stored)
    │   ├── StoreRefused            it can never hold this value
    │   ├── StoreCopied             its jobs were carried to another store (has .to)
    │   └── SchemaOutOfDate         its schema and this code do not fit
    ├── UsageError                  a verb called where it cannot work
    └── WorkflowNotFound, WorkflowFailed  see `group_errors`

Each has a stable `code`, and a message that says what happened, to which job, and what to do.
"""

from __future__ import annotations

from typing import Any, ClassVar


class PackhorseError(Exception):
    """Something Packhorse was asked to do did not happen."""

    #: Stable across releases; safe to match on in code and alerts.
    code: ClassVar[str] = "PACKHORSE_ERROR"
    #: Of `enqueue_many`: the handles of the calls that were stored before this happened, in order.
    stored: tuple[Any, ...] = ()
    #: Of `enqueue_many`: the calls behind those, each with the id that it has or would have; it is
    #: safe to submit them again, also if some were stored and the answer was lost.
    rest: tuple[Any, ...] = ()


class ConfigError(PackhorseError):
    """A setting or a declaration cannot work; the message names it and the fix."""

    code = "CONFIG_ERROR"


class ShapeError(ConfigError):
    """A wire object breaks the worker protocol; `path` names the failing field."""

    code = "INVALID_SHAPE"

    def __init__(self, message: str, *, path: str = "$") -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


class ContractError(PackhorseError):
    """A task broke its contract, or was asked to; `field` names the culprit, where it is one."""

    code = "CONTRACT_ERROR"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class BudgetExceeded(ContractError):
    """A job has spent more tokens, over all its attempts, than its contract allows."""

    code = "BUDGET_EXCEEDED"

    def __init__(self, *, task: str, spent: int, limit: int) -> None:
        super().__init__(
            f"task {task} has spent {spent} tokens on this job, and its contract allows {limit} "
            "over all attempts; raise max_tokens, or use 'packhorse jobs retry --reset-budget'"
        )
        self.spent, self.limit = spent, limit


class ToolNotAllowed(ContractError):
    """A handler reached for a tool that its contract does not name."""

    code = "TOOL_NOT_ALLOWED"

    def __init__(self, tool: str, *, task: str, allowed: tuple[str, ...]) -> None:
        super().__init__(
            f"task {task} may not use the tool {tool!r}: its contract allows "
            f"{', '.join(allowed) or 'none'}; add it to tools_allowed, or do without it"
        )
        self.tool, self.allowed = tool, allowed


class ToolNotFound(ContractError):
    """A handler reached for a tool that the app does not have."""

    code = "TOOL_NOT_FOUND"

    def __init__(self, tool: str, *, task: str) -> None:
        cure = f"register it with app.tool({tool!r}, function)"
        super().__init__(f"task {task} wants the tool {tool!r}, and there is none; {cure}")
        self.tool = tool


class PayloadError(PackhorseError):
    """Arguments or a result cannot be carried as declared; `field` names the culprit."""

    code = "PAYLOAD_ERROR"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class JobError(PackhorseError):
    """Something is wrong with one job, named by `job_id`."""

    code = "JOB_ERROR"

    def __init__(self, message: str, *, job_id: str) -> None:
        super().__init__(message)
        self.job_id = job_id


class ScheduleNotFound(PackhorseError):
    """The store holds no schedule of that name."""

    code = "SCHEDULE_NOT_FOUND"

    def __init__(self, name: str) -> None:
        super().__init__(f"the store holds no schedule {name!r}; see 'packhorse schedules list'")
        self.name = name


class JobNotFound(JobError):
    """No such job is visible here: never submitted, pruned, or of another tenant."""

    code = "JOB_NOT_FOUND"

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"job {job_id} is not in this store: it was never submitted here, has been removed "
            "by retention, or belongs to another tenant",
            job_id=job_id,
        )


class JobDead(JobError):
    """The job is dead-lettered; `reason` says why, `error` is the last error it met."""

    code = "JOB_DEAD"

    def __init__(self, job_id: str, *, reason: str, error: str | None = None) -> None:
        detail = f": {error}" if error else ""
        super().__init__(
            f"job {job_id} is dead ({reason}){detail}; look at it with 'packhorse dead show "
            f"{job_id}' and run it again with 'packhorse dead redrive {job_id}'",
            job_id=job_id,
        )
        self.reason = reason
        self.error = error


class JobCancelled(JobError):
    """The job was cancelled and has no result."""

    code = "JOB_CANCELLED"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id} was cancelled and has no result", job_id=job_id)


class JobConflict(JobError):
    """The job's state refuses the request; the message says what would be allowed."""

    code = "JOB_CONFLICT"


class IdempotencyMismatch(JobError):
    """The idempotency key already belongs to a job with another payload."""

    code = "IDEMPOTENCY_MISMATCH"


class ResultTimeout(JobError, TimeoutError):
    """The job, batch or workflow has not ended within the time given; it goes on regardless."""

    code = "RESULT_TIMEOUT"

    def __init__(self, job_id: str, *, waited_s: float, what: str = "job") -> None:
        super().__init__(
            f"{what} {job_id} did not finish within {waited_s:g} s; it goes on regardless: "
            f"wait again, or ask its {'progress()' if what == 'batch' else 'status()'}",
            job_id=job_id,
        )
        self.waited_s = waited_s


class KeyUnavailable(JobError):
    """Something of a job is encrypted with a key that is not here; `key` is its id."""

    code = "KEY_UNAVAILABLE"

    def __init__(self, job_id: str, *, key: str, what: str) -> None:
        super().__init__(
            f"the {what} of job {job_id} is encrypted with key {key!r}, which this process does "
            "not have, or has other bytes for; nothing is lost: give it that key, in "
            "PACKHORSE_KEYS or as Packhorse(encryption=...)",
            job_id=job_id,
        )
        self.key = key
        self.what = what


class ArtifactError(JobError):
    """An artifact is gone or damaged, or its place did not take it."""

    code = "ARTIFACT_ERROR"


class StepRefused(JobError):
    """Another worker may hold the job by now, so that what this attempt says counts no more."""

    code = "STEP_REFUSED"


class TransactionRefused(JobError):
    """A transaction of a handler was rolled back: its job cannot be completed by it any more."""

    code = "TRANSACTION_REFUSED"


class StepMismatch(PackhorseError):
    """The steps of a job differ from those that an earlier attempt kept."""

    code = "STEP_MISMATCH"


class StepTimeout(PackhorseError, TimeoutError):
    """A step took longer than it may."""

    code = "STEP_TIMEOUT"


class WaitTimeout(PackhorseError, TimeoutError):
    """The signal that a job waited for did not come in time."""

    code = "WAIT_TIMEOUT"


class QueueFull(PackhorseError):
    """The queue or the store holds as much as it may; nothing of this submit was stored.

    The `reason` is `depth`, and `depth` and `limit` are jobs, or `bytes` or `store_bytes`.
    """

    code = "QUEUE_FULL"

    def __init__(self, queue: str, *, depth: int, limit: int, reason: str = "depth") -> None:
        held, setting = f"{depth} bytes are held", "max_bytes"
        if reason == "depth":
            held, setting = "1 job waits" if depth == 1 else f"{depth} jobs wait", "max_depth"
        full = "the store" if reason == "store_bytes" else f"queue {queue!r}"
        super().__init__(
            f"{full} is full: {held} and {setting} is {limit}; nothing was stored: try later, "
            f"submit less, add workers, or raise {setting}"
        )
        self.queue, self.depth, self.limit, self.reason = queue, depth, limit, reason


class QueueClosed(PackhorseError):
    """The queue is closed and takes no new jobs; nothing of this submit was stored."""

    code = "QUEUE_CLOSED"

    def __init__(self, queue: str) -> None:
        super().__init__(
            f"queue {queue!r} is closed and takes no new jobs; nothing was "
            "stored: submit to another queue, or wait until it is open again"
        )
        self.queue = queue


class TenantRequired(PackhorseError):
    """The queue, or the app, takes no job that belongs to no tenant; nothing was stored."""

    code = "TENANT_REQUIRED"

    def __init__(self, task: str, queue: str) -> None:
        super().__init__(
            f"a job of task {task} was submitted to queue {queue!r}, which demands a tenant, "
            "without one; nothing was stored: use using(tenant=...), or app.tenant(...)"
        )
        self.task, self.queue = task, queue


class StoreError(PackhorseError):
    """The store could not do what was asked."""

    code = "STORE_ERROR"


class StoreUnavailable(StoreError):
    """The store cannot be reached now.

    At submit, `job_id` is the id the job has or would have, and `maybe_stored` says whether the
    write may have happened all the same; submitting the same id again is safe.
    """

    code = "STORE_UNAVAILABLE"

    def __init__(
        self, message: str, *, job_id: str | None = None, maybe_stored: bool = False
    ) -> None:
        super().__init__(message)
        self.job_id, self.maybe_stored = job_id, maybe_stored


class StoreCopied(StoreError):
    """The jobs of this store were carried to another one, `to`; here they would run twice.

    Of a copy that has not carried all of them, `since` says when it began.
    """

    code = "STORE_COPIED"

    def __init__(self, label: str = "URL", *, to: str, since: str | None = None) -> None:
        state, cure = f"were copied to {to}, where they run", "use that store, or lift the mark"
        if since is not None:
            state = f"are being copied to {to}, since {since}"
            cure = "run the copy again to go on, or take it back"
        super().__init__(
            f"the jobs of this store {state}; nothing was done here: "
            f"{cure} with 'packhorse copy --undo --from {label}'"
        )
        self.to = to


class StoreRefused(StoreError):
    """The store can never hold a value it was given; nothing of the call was written.

    Trying again is no use. The message says what the store found wrong with it.
    """

    code = "STORE_REFUSED"


class SchemaOutOfDate(StoreError):
    """The store's schema and this release do not fit; the message says which side to upgrade."""

    code = "SCHEMA_OUT_OF_DATE"


class UsageError(PackhorseError):
    """The verb cannot work where it was called; the message names the one that can."""

    code = "USAGE_ERROR"
