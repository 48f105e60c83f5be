# SPDX-License-Identifier: MIT
"""From a call to a stored job: what the caller decided, the task's defaults, an id and a trace."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from packhorse.call import NO_CHOICES, Call
from packhorse.clock import new_id, new_ids
from packhorse.codec import PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_WARNING
from packhorse.connection import Connection
from packhorse.declarations import Declarations
from packhorse.errors import ConfigError, PayloadError, UsageError
from packhorse.handle import JobHandle
from packhorse.job import FreshJobs, IdempotencyRule, JobOptions, LikeJobs, NewJob
from packhorse.keys import taken_key
from packhorse.registry import TaskDefinition
from packhorse.unique import Unique, payload_digest, unique_rule
from packhorse.waiting import in_event_loop

__all__ = ["Submission", "new_job", "taken_keys", "trace_id_of"]

R = TypeVar("R")


class Submission:
    """Submits calls for an app, and says once what is worth saying once."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._warned: set[str] = set()  # at most one entry a task, and one for blocking

    def submit_one(self, call: Call[R], verb: str) -> JobHandle[R]:
        """As `submit`, of one call."""
        connection = self.connection
        jobs, wait_us = _only_job(call, connection.declarations)
        if in_event_loop():
            self.warn_of_blocking(verb)
        if len(call.payload) > PAYLOAD_BYTES_WARNING:
            self._check_sizes(jobs)
        [answer] = connection.submit(jobs, wait_us)
        return JobHandle(answer.job_id, answer.deduplicated, connection)

    async def asubmit_one(self, call: Call[R]) -> JobHandle[R]:
        """As `asubmit`, of one call."""
        connection = self.connection
        jobs, wait_us = _only_job(call, connection.declarations)
        if len(call.payload) > PAYLOAD_BYTES_WARNING:
            self._check_sizes(jobs)
        [answer] = await connection.asubmit(jobs, wait_us)
        return JobHandle(answer.job_id, answer.deduplicated, connection)

    def submit(self, calls: Iterable[Call[R]], verb: str) -> list[JobHandle[R]]:
        """Store all calls or none, in one round trip, from plain code."""
        jobs, wait_us = self._prepared(list(calls))
        if in_event_loop():
            self.warn_of_blocking(verb)
        return self.store(jobs, wait_us=wait_us)

    async def asubmit(self, calls: Iterable[Call[R]]) -> list[JobHandle[R]]:
        """Store all calls or none, in one round trip, from async code."""
        jobs, wait_us = self._prepared(list(calls))
        return await self.astore(jobs, wait_us=wait_us)

    def store(self, jobs: Sequence[NewJob], *, wait_us: int | None = None) -> list[JobHandle[Any]]:
        """Store jobs; a handle for each."""
        self._check_sizes(jobs)
        answers = self.connection.submit(jobs, wait_us=wait_us) if jobs else ()
        return [JobHandle(one.job_id, one.deduplicated, self.connection) for one in answers]

    async def astore(
        self, jobs: Sequence[NewJob], *, wait_us: int | None = None
    ) -> list[JobHandle[Any]]:
        """As `store`, without blocking the event loop."""
        self._check_sizes(jobs)
        answers = await self.connection.asubmit(jobs, wait_us=wait_us) if jobs else ()
        return [JobHandle(one.job_id, one.deduplicated, self.connection) for one in answers]

    def _prepared(self, calls: Sequence[Call[Any]]) -> tuple[Sequence[NewJob], int | None]:
        """The calls as they are stored, and how long they wait for room: as the least patient."""
        for call in calls:
            if not isinstance(call, Call):
                raise UsageError(f"{call!r} is not a call; make one with task.call(...)")
        ids = new_ids(len(calls))
        if _are_plainly_alike(calls):
            return _like_jobs(calls, ids), None
        known = self.connection.declarations
        pairs = zip(calls, ids, strict=True)
        jobs = [new_job(call, known, job_id) for call, job_id in pairs]
        chosen = [call.choices.values for call in calls if call.choices is not NO_CHOICES]
        return jobs, min([values["wait"] for values in chosen if "wait" in values], default=None)

    def _check_sizes(self, jobs: Sequence[NewJob]) -> None:
        if max([len(job.payload) for job in jobs], default=0) <= PAYLOAD_BYTES_WARNING:
            return
        for job in jobs:
            size = len(job.payload)
            if size > PAYLOAD_BYTES_MAX:
                raise PayloadError(
                    f"the payload of task {job.task} is {size} bytes, and {PAYLOAD_BYTES_MAX} "
                    "are allowed; nothing was stored: keep the data elsewhere and pass a reference"
                )
            if size > PAYLOAD_BYTES_WARNING:
                self._warn_of_size(job.task, size)

    def _warn_of_size(self, task: str, size: int) -> None:
        if task in self._warned:
            return
        self._warned.add(task)
        message = (
            f"a payload of task {task} is {size} bytes; above {PAYLOAD_BYTES_WARNING} they slow "
            "the queue down: keep the data elsewhere and pass a reference"
        )
        import logging  # noqa: PLC0415 - rarely needed, so submitting does not pay for it

        logging.getLogger("packhorse").warning(message)
        warnings.warn(message, UserWarning, stacklevel=_user_stacklevel())

    def warn_of_blocking(self, verb: str) -> None:
        """Say, once, that a sync verb holds up the event loop it was called on."""
        if "" in self._warned:
            return
        self._warned.add("")
        warnings.warn(
            f"{verb}() blocks the running event loop until the store has written; "
            f"await a{verb}() instead",
            RuntimeWarning,
            stacklevel=_user_stacklevel(),
        )


def _only_job(call: Call[Any], declarations: Declarations) -> tuple[tuple[NewJob, ...], int | None]:
    """One call as it is stored, and how long it waits for room. A chosen id may be known."""
    if call.choices is NO_CHOICES and call.definition.is_plain:
        return LikeJobs((_plain_job(call, new_id()),)), None
    job, chosen = new_job(call, declarations), call.choices.values
    return (job,) if "job_id" in chosen else FreshJobs((job,)), chosen.get("wait")


def new_job(call: Call[Any], declarations: Declarations, job_id: str | None = None) -> NewJob:
    """A call as it is stored: under the id its caller chose, this one, or one of its own."""
    task = call.definition
    job_id = job_id or new_id()
    if call.choices is NO_CHOICES and task.is_plain:
        return _plain_job(call, job_id)
    chosen = call.choices.fields()
    job_id = chosen.pop("id", None) or job_id
    retry, key = chosen.pop("retry", None), chosen.get("idempotency_key")
    options = None
    if retry is not None or key is not None or task.max_crashes is not None:
        # The crash limit travels with the job: whoever rescues it may not know the task.
        options = JobOptions(retry=retry, max_crashes=task.max_crashes, idempotency_key=key)
    chosen.pop("wait_us", None)
    queue = chosen.pop("queue", task.queue)
    keys = taken_keys(task, call.payload, chosen.pop("unique", None))
    idempotency = _idempotency(call, queue, chosen, declarations)
    return NewJob(
        id=job_id,
        task=task.name,
        payload=call.payload,
        queue=queue,
        timeout_us=chosen.pop("timeout_us", task.timeout_us),
        trace_id=chosen.pop("trace_id", None) or trace_id_of(job_id),
        options=options,
        idempotency=idempotency,
        **{**keys, **chosen},
    )


def _plain_job(call: Call[Any], job_id: str) -> NewJob:
    """As `new_job`, of a plain task whose caller left everything to it."""
    task = call.definition
    return NewJob(
        job_id,
        task.name,
        call.payload,
        task.queue,
        timeout_us=task.timeout_us,
        trace_id=job_id.replace("-", ""),
    )


def _are_plainly_alike(calls: Sequence[Call[Any]]) -> bool:
    """Whether these are calls of one task whose callers left everything else to it."""
    if not calls or not calls[0].definition.is_plain:
        return False
    task = calls[0].definition
    return all(call.definition is task and call.choices is NO_CHOICES for call in calls)


def _like_jobs(calls: Sequence[Call[Any]], ids: Sequence[str]) -> LikeJobs:
    """As `new_job`, of many plain calls of one task."""
    task = calls[0].definition
    name, queue, timeout_us = task.name, task.queue, task.timeout_us
    return LikeJobs(
        [
            NewJob(
                job_id,
                name,
                call.payload,
                queue,
                timeout_us=timeout_us,
                trace_id=job_id.replace("-", ""),
            )
            for call, job_id in zip(calls, ids, strict=True)
        ]
    )


def taken_keys(
    task: TaskDefinition, payload: bytes, unique: Unique | None = None
) -> dict[str, Any]:
    """The fields of a job that its task takes from the arguments; most tasks take none."""
    keys: dict[str, Any] = {}
    if task.concurrency_key is not None:
        keys["concurrency_key"] = taken_key(task.concurrency_key, task, payload)
    if task.rate_key is not None:
        keys["rate_key"] = taken_key(task.rate_key, task, payload)
    chosen = unique or task.unique
    if chosen is not None:
        keys["unique"] = unique_rule(chosen, task, payload)
    return keys


def _idempotency(
    call: Call[Any], queue: str, chosen: dict[str, Any], declarations: Declarations
) -> IdempotencyRule | None:
    task, key = call.definition, chosen.pop("idempotency_key", None)
    window_us = chosen.pop("idempotency_window_us", None)
    if key is None:
        if window_us is not None:
            raise ConfigError(
                f"a call of task {task.name} has an idempotency_window and no idempotency_key, so "
                "the window says nothing; give a key, or leave the window out"
            )
        return None
    window_us = declarations.idempotency_window_us(task, queue, window_us)
    return IdempotencyRule(key, payload_digest(task.name, call.payload), window_us)


def trace_id_of(job_id: str) -> str:
    """The trace id of a job that came without one: its own id, which is as unique."""
    return job_id.replace("-", "")


def _user_stacklevel() -> int:
    """How far up the first caller outside this package is, for `warnings.warn` called above."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("packhorse."):
        level, frame = level + 1, frame.f_back
    return level
