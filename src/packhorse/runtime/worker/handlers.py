# SPDX-License-Identifier: MIT
"""How to call the handler of each task, and its rules: worked out once per task, not per job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final

import msgspec

from packhorse.client.contracts import BoundContract
from packhorse.client.registry import Registry, TaskDefinition
from packhorse.core.batches import Chunk, is_chunk
from packhorse.core.clock import SECOND_US
from packhorse.core.codec import RESULT_BYTES_MAX, Signature
from packhorse.core.job import Job, JobOptions, RetryRule
from packhorse.core.lifecycle import JobRules
from packhorse.core.outcome import Outcome, Succeeded
from packhorse.core.policies.retention import DAY_US, Retention
from packhorse.core.text import text_of
from packhorse.core.versions import OtherVersion, PayloadVersions, stored_version
from packhorse.runtime.worker.settings import Settings
from packhorse.stores.requests import QueueSettings
from packhorse.tools import NO_TOOLS, RESULT_TOOL, Tools

_OPTIONS: Final = msgspec.json.Decoder(JobOptions)
#: Options without these names, as those of traced jobs, are not worth decoding for their limits.
_OWN_LIMITS: Final = ('"retry"', '"max_crashes"', '"max_snoozes"')
#: Plans that are kept; a store may hold jobs of any number of tasks that are declared elsewhere.
_PLANS_MAX: Final = 10_000


def _any_json(payload: Any) -> Any:
    """Stand in for a task that is declared elsewhere: any JSON in, any JSON out."""
    return payload


_ANY_JSON: Final = Signature.of(_any_json, skip_first=False)


@dataclass(frozen=True, slots=True, eq=False)
class HandlerSpec:
    """One task on one queue: how to call it, for how long, under which limits."""

    name: str
    worker_id: str  #: of its contract; that of a task without one is its name
    threaded: bool
    wants_context: bool
    whole: bool  #: the payload is the one argument itself
    function: Callable[..., Any]  #: takes all arguments by their names
    decode: Callable[[str | bytes], dict[str, Any]]
    encode_result: Callable[[Any], str]
    timeout_s: float  #: for jobs that name none
    rules: JobRules  #: for jobs with no options of their own
    bound: BoundContract | None = None  #: the contract its task was declared with
    versions: PayloadVersions | None = None  #: of its payloads, where they have some
    tools: Tools = NO_TOOLS  #: what its handlers may use
    max_tokens: int | None = None  #: that a job may spend over all its attempts
    write_result: Callable[..., Any] | None = None  #: where results go besides the job
    timeout_max_s: float = inf  #: whatever a job says
    returns_nothing: bool = True  #: None fits what its result is annotated as
    result_bytes_max: int = RESULT_BYTES_MAX
    process: bool = False  #: it runs in a process of its own, which can be killed
    limited: bool = False  #: the task or the queue has limits, over all workers
    counted: bool = False  #: it counts while it runs, so that its end may let another one go
    is_tick: bool = False  #: shutdown does not wait for it: it comes again anyway
    is_coroutine: bool = True  #: its function is one, wherever it runs
    item: HandlerSpec | None = None  #: of a chunk: how each of its items is called


def read_arguments(handler: HandlerSpec, job: Job) -> dict[str, Any]:
    """Decode and check the arguments of a job, at the current version of its task.

    Raises `UnreadableArguments`, or `OtherVersion` for a payload of another version; the cause is
    the error.
    """
    try:
        payload = job.payload if handler.versions is None else current_payload(handler, job)
        if handler.bound is not None:
            handler.bound.admit(job, payload)
        return handler.decode(payload)
    except OtherVersion:
        raise
    except Exception as error:  # annotations may run user code
        versions = handler.versions
        if versions is None or versions.is_current(stored_version(job.options)):
            raise UnreadableArguments from error
        if not is_readable(handler, job.payload):
            raise UnreadableArguments from error
        raise _other_version(handler, versions, job, error) from error


def items_of(handler: HandlerSpec, job: Job) -> list[Job]:
    """Return the items of a chunk, each as a job of its own; for any other job, the job."""
    if handler.item is None:
        return [job]
    try:
        chunk = msgspec.json.decode(job.payload, type=Chunk)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise UnreadableArguments from error
    return [msgspec.structs.replace(job, payload=bytes(each).decode()) for each in chunk.items]


def current_payload(handler: HandlerSpec, job: Job) -> str | bytes:
    """Return the payload at the current version; raises `OtherVersion` if that is impossible."""
    versions = handler.versions
    if versions is None or not is_readable(handler, job.payload):
        return job.payload
    try:
        return versions.upcast(stored_version(job.options), job.payload)
    except Exception as error:  # upcasters are user code
        raise _other_version(handler, versions, job, error) from error


def _other_version(
    handler: HandlerSpec, versions: PayloadVersions, job: Job, error: Exception
) -> OtherVersion:
    version = stored_version(job.options)
    said = "has no version" if version is None else f"is of version {version!r}"
    text = "" if isinstance(error, OtherVersion) else text_of(error)
    why = f", which it does not fit: {text}" if text else ", which is older"
    return OtherVersion(
        f"its payload {said}, and task {handler.name} is at {versions.current!r}{why}"
    )


def is_readable(handler: HandlerSpec, payload: str) -> bool:
    """Whether a payload is JSON, and of the kind that the task's arguments come as."""
    try:
        value = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return isinstance(value, dict) or handler.whole or handler.bound is not None


class UnreadableArguments(Exception):
    """The payload does not fit the handler; the cause says why."""


def too_large(handler: HandlerSpec, outcome: Outcome) -> str | None:
    """Return what is wrong with a result that is too large for its task; None if nothing."""
    if not isinstance(outcome, Succeeded):
        return None
    result, most = outcome.result, handler.result_bytes_max
    # No character has more than four bytes.
    if 4 * len(result) <= most or (size := len(result.encode())) <= most:
        return None
    return (
        f"the result of task {handler.name} is {size} bytes, and {most} are allowed: "
        "give the app a place for artifacts, return a reference, or raise the task's "
        "max_result_bytes"
    )


class HandlerBook:
    """The call plans of every task this worker knows, by queue and task."""

    def __init__(
        self,
        registry: Registry,
        queues: Mapping[str, QueueSettings],
        default_timeout_us: int,
        *,
        foreign: bool = False,
    ) -> None:
        self._registry = registry
        self._foreign = foreign  # plan tasks that are declared elsewhere too
        self._settings = Settings(queues)
        self._default_timeout_us = default_timeout_us
        self._handlers: dict[tuple[str, str], HandlerSpec] = {}
        self._chunks: dict[HandlerSpec, HandlerSpec] = {}  # by the handlers of their items

    def use(self, settings: Settings) -> None:
        """Use these settings from now on; running attempts keep theirs."""
        self._settings = settings
        self._handlers.clear()
        self._chunks.clear()

    @property
    def longest_timeout_us(self) -> int:
        """The timeout that a store assumes for jobs without one.

        The longest any task has, since the store knows the job's own timeout only: a hold limit
        that is too short would give a running job away.
        """
        definitions = (self._registry.get(name) for name in self._registry.names)
        own = [task.timeout_us for task in definitions if task and task.timeout_us]
        return max([self._default_timeout_us, *own])

    def find(self, job: Job) -> HandlerSpec:
        """Return the handler of a job's task."""
        key = (job.queue, job.task)
        handler = self._handlers.get(key)
        if handler is None:
            handler = self._make(job)
            if len(self._handlers) < _PLANS_MAX:
                self._handlers[key] = handler
        if job.options is not None and is_chunk(job.options):
            return self._chunk(handler)
        return handler

    def _chunk(self, item: HandlerSpec) -> HandlerSpec:
        """Return that of a chunk; contract and versions are checked for each item instead."""
        chunk = self._chunks.get(item)
        if chunk is None:
            chunk = replace(
                item,
                item=item,
                worker_id=item.name,
                bound=None,
                versions=None,
                write_result=None,
                timeout_max_s=inf,
            )
            self._chunks[item] = chunk
        return chunk

    def _make(self, job: Job) -> HandlerSpec:
        settings = self._settings.queue(job.queue)
        definition = self._registry.get(job.task)
        if definition is None and not self._foreign:
            return _unknown(job.task)
        if definition is None:
            rules = JobRules(
                retry=settings.retry or RetryRule(), retention=settings.retention or Retention()
            )
            return replace(
                _unknown(job.task),
                timeout_s=self._default_timeout_us / SECOND_US,
                encode_result=_ANY_JSON.encode_result,
                rules=rules,
            )
        timeout_us = definition.timeout_us or self._default_timeout_us
        signature = definition.signature
        return HandlerSpec(
            name=definition.name,
            worker_id=definition.worker_id,
            threaded=definition.kind == "thread",
            process=definition.kind == "process",
            is_coroutine=definition.coroutine or definition.kind == "coroutine",
            wants_context=definition.wants_context,
            whole=signature.whole,
            function=signature.by_name(definition.function),
            decode=signature.decode,
            encode_result=definition.encode_result,
            bound=definition.bound,
            versions=definition.versions if definition.version is not None else None,
            tools=definition.tools(self._registry.tools),
            max_tokens=None if definition.bound is None else definition.bound.contract.max_tokens,
            write_result=_result_writer(definition, self._registry.tools),
            timeout_max_s=_longest_s(definition.bound),
            returns_nothing=signature.results.allows_nothing and definition.bound is None,
            timeout_s=timeout_us / SECOND_US,
            rules=JobRules(
                retry=definition.retry or settings.retry or RetryRule(),
                max_snoozes=definition.max_snoozes,
                retention=_retention(settings.retention, is_tick=definition.is_tick),
                result_keep_us=definition.result_keep_us,
                max_crashes=definition.max_crashes,
            ),
            limited=self._settings.limits(job.queue, job.task),
            counted=self._settings.counts(job.queue, job.task),
            result_bytes_max=definition.result_bytes_max,
            is_tick=definition.is_tick,
        )


def _retention(chosen: Retention | None, *, is_tick: bool) -> Retention:
    """How long jobs are kept; ticks that fail do not pile up among the dead letters."""
    if is_tick and (chosen is None or chosen.dead_us is None):
        return msgspec.structs.replace(chosen or Retention(), dead_us=DAY_US)
    return chosen or Retention()


def _result_writer(
    definition: TaskDefinition, tools: Mapping[str, Callable[..., Any]]
) -> Callable[..., Any] | None:
    """The app's result store, where the task's contract names it."""
    allowed = None if definition.bound is None else definition.bound.contract.tools_allowed
    return tools.get(RESULT_TOOL) if RESULT_TOOL in (allowed or ()) else None


def _longest_s(bound: BoundContract | None) -> float:
    limit_us = None if bound is None else bound.contract.timeout_us
    return inf if limit_us is None else limit_us / SECOND_US


class UnknownTask(LookupError):
    """A store returned a job of a task that this worker did not ask for."""


def _unknown(task: str) -> HandlerSpec:
    """Return one that fails: the job is retried, perhaps by a worker that knows the task."""

    async def fail() -> None:
        raise UnknownTask(
            f"no task is declared as {task!r} here; deploy the code that has it, or give it "
            "as an alias of the task that replaced it"
        )

    return HandlerSpec(
        name=task,
        worker_id=task,
        threaded=False,
        wants_context=False,
        whole=True,
        function=fail,
        decode=lambda _payload: {},
        encode_result=str,
        timeout_s=1.0,
        rules=JobRules(),
    )


def rules_of(job: Job, handler: HandlerSpec) -> JobRules:
    """Return the limits of one job: its call's, else its task's, else its queue's."""
    options = job.options
    if options is None or not any(name in options for name in _OWN_LIMITS):
        return handler.rules
    try:
        own = _OPTIONS.decode(options)
    except msgspec.DecodeError:  # written by a release that knew other options
        return handler.rules
    retry = own.retry or handler.rules.retry
    most = None if handler.bound is None else handler.bound.contract.max_attempts
    if most is not None and retry.max_retries >= most:  # of a producer that did not know it
        retry = msgspec.structs.replace(retry, max_retries=most - 1)
    return msgspec.structs.replace(
        handler.rules,
        retry=retry,
        max_snoozes=handler.rules.max_snoozes if own.max_snoozes is None else own.max_snoozes,
        max_crashes=handler.rules.max_crashes if own.max_crashes is None else own.max_crashes,
    )
