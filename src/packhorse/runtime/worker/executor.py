# SPDX-License-Identifier: MIT
"""Run one attempt and return its outcome: decode, call the handler, classify the result.

User code cannot make these functions raise: its failures are values.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from packhorse.artifacts import RESULT_ARTIFACT_BYTES_MAX, PlaceSource, is_reference, moved_result
from packhorse.context import RUNNING, Context, job_fields
from packhorse.core.job import DeadReason, JobRecord
from packhorse.core.outcome import Failed, GivenUp, Outcome, Snoozed, Succeeded
from packhorse.core.references import Wanted, filled, wanted_results
from packhorse.core.responses import (
    INVALID_OUTPUT,
    answer_in,
    broken_output,
    failed_answer,
    with_outputs,
)
from packhorse.core.sealing import SEALED, require_open
from packhorse.core.steps import has_attachments
from packhorse.core.text import text_of
from packhorse.core.versions import OtherVersion, set_aside
from packhorse.errors import ContractError, PayloadError, ShapeError, StoreError, StoreUnavailable
from packhorse.protocol import UNSET, AnswerStatus, TaskError, WorkerResponse, to_wire
from packhorse.runtime.services.upkeep import PARKED_US_MAX
from packhorse.runtime.worker.attempt import Attempt
from packhorse.runtime.worker.chunks import ChunkEnded, ChunkRun
from packhorse.runtime.worker.handlers import (
    HandlerSpec,
    UnreadableArguments,
    is_readable,
    read_arguments,
    rules_of,
    too_large,
)
from packhorse.runtime.worker.outcomes import (
    described,
    ended_by_worker,
    kinds_of,
    oversized,
    raised,
    returned_error,
    within_budget,
)
from packhorse.steps import IN_THREAD, ON_LOOP, finished
from packhorse.steps.calls import Calls, Work
from packhorse.steps.publishing import blocking, published

_LOG: Final = logging.getLogger("packhorse.job")
_NOTHING: Final = Succeeded("null")
#: Between two tries to read results from a store that cannot be reached.
_STORE_PAUSE_S: Final = 1.0
#: Types that a handler may return instead of a result.
_NO_RESULTS: Final = (BaseException, TaskError, WorkerResponse, ChunkEnded)


class Executor:
    """Calls handlers."""

    def __init__(
        self, make_context: Callable[[Attempt], Context], places: PlaceSource | None = None
    ) -> None:
        self._make_context = make_context
        self._places = places
        #: Called in the handler's own task or thread just before it runs.
        self.enter: Callable[[Attempt], None] | None = None
        self._warned: set[str] = set()  # tasks of which a job was set aside

    async def execute(self, attempt: Attempt, calls: Calls = ON_LOOP) -> Outcome:
        """Run a coroutine handler; with `IN_THREAD`, a plain one, without waiting for a loop."""
        handler = attempt.handler
        try:
            if self.enter is not None and attempt.ending is None:
                self.enter(attempt)
            outcome = None if attempt.job.options is None else await self._prepared(attempt, calls)
            if outcome is None:
                value = self._call(attempt)
                value = await value if calls is ON_LOOP else value
                if attempt.ending is None and attempt.settled is None:
                    outcome = judged(handler, value, job_id=attempt.job.id)
                else:
                    outcome = _overruled(attempt)
            if outcome is _NOTHING and attempt.context is None and handler.write_result is None:
                return outcome  # the most common case: nothing is left to check or to write
        except BaseException as error:  # noqa: BLE001 - SystemExit fails the job, not the worker
            outcome = await self._raised(attempt, error, calls)
        try:
            if (problem := too_large(handler, outcome)) is not None:
                outcome = await self._moved(attempt, outcome, problem, calls)
            if attempt.context is not None:
                outcome = within_budget(attempt, attempt.context, outcome)
            if (work := self._rest_of(attempt, outcome, calls)) is not None:
                return await work
            return outcome
        except BaseException as error:  # noqa: BLE001 - as above
            return raised_in(attempt, error)
        finally:
            del outcome  # the exception in it holds this frame: a cycle that would keep it alive

    def execute_here(self, attempt: Attempt) -> Outcome:
        """Run a plain handler in the calling thread."""
        return finished(self.execute(attempt, IN_THREAD))

    async def _prepared(self, attempt: Attempt, calls: Calls) -> Outcome | None:
        """Fetch results of other jobs and kept steps; return an outcome if the steps have one."""
        if wanted := wanted_results(attempt.job):
            await _fill_in(attempt, wanted, self.context(attempt), calls)
        if not has_attachments(attempt.job):
            return None
        result = await self.context(attempt).steps.open(calls)
        return None if result is None else Succeeded(result)

    async def _raised(self, attempt: Attempt, error: BaseException, calls: Calls) -> Outcome:
        """Classify what a handler raised, after writing the steps that share a write."""
        unwritten = None if attempt.context is None else attempt.context.unwritten_steps
        if unwritten is not None:
            with suppress(Exception):  # steps that are lost run again
                await unwritten.write(calls)
        if isinstance(error, OtherVersion) and attempt.ending is None:
            stored, host = None, self.context(attempt).host
            with suppress(StoreError):
                stored = await calls.ask(host, host.stored)
            return self._set_aside(attempt, error, stored)
        return raised_in(attempt, error)

    def _call(self, attempt: Attempt) -> Any:
        """Decode the arguments and call the handler; returns a coroutine if it is one."""
        if attempt.ending is not None:
            raise asyncio.CancelledError
        handler = attempt.handler
        RUNNING.set(attempt.running)
        if attempt.job.payload.startswith(SEALED):
            require_open(attempt.job.payload, attempt.job.id, "payload")
        if handler.item is not None:
            run = ChunkRun(attempt, self.context(attempt), judged)
            return run.run(ON_LOOP) if handler.item.is_coroutine else finished(run.run(IN_THREAD))
        arguments = read_arguments(handler, attempt.job)
        if handler.wants_context:
            return handler.function(self.context(attempt), **arguments)
        return handler.function(**arguments)

    def _rest_of(self, attempt: Attempt, outcome: Outcome, calls: Calls) -> Work[Outcome] | None:
        """Return what is left to do after a handler: write its result elsewhere, ask a person."""
        tool = attempt.handler.write_result
        if tool is not None and isinstance(outcome, Succeeded):
            rule, context = rules_of(attempt.job, attempt.handler).retry, self.context(attempt)
            tool = blocking(tool) if calls is IN_THREAD else tool
            return published(context.steps, calls, context.job, outcome, tool, rule=rule)
        if isinstance(outcome, Snoozed) and outcome.asks:
            return self.context(attempt).steps.ask(calls, outcome)
        return None

    def _set_aside(
        self, attempt: Attempt, error: OtherVersion, record: JobRecord | None
    ) -> Outcome:
        """Set a job aside whose payload is of another version; log that once per task."""
        problem, now_us = text_of(error), self.context(attempt).host.now_us()
        if attempt.job.task not in self._warned:
            self._warned.add(attempt.job.task)
            _LOG.warning("a job is set aside: %s", problem, extra=job_fields())
        return set_aside(record, problem, now_us, longest_us=PARKED_US_MAX)

    async def _moved(
        self, attempt: Attempt, outcome: Outcome, problem: str, calls: Calls
    ) -> Outcome:
        """Keep a result that is too large as an artifact, or refuse it."""
        move = partial(moved_aside, self._places, attempt, outcome)
        moved = await asyncio.to_thread(move) if calls is ON_LOOP else move()
        return moved or oversized(problem)

    def context(self, attempt: Attempt) -> Context:
        """Return the attempt's context; made when first needed."""
        context = attempt.context
        if context is None:
            context = attempt.context = self._make_context(attempt)
            if attempt.ending is not None:  # told to stop while it was being made
                context.request_cancel()
        return context


def moved_aside(places: PlaceSource | None, attempt: Attempt, outcome: Outcome) -> Outcome | None:
    """Keep a large result as an artifact, if the app has a place for them; else return None."""
    elsewhere = attempt.handler.write_result is not None
    if places is None or not places.chosen or elsewhere or not isinstance(outcome, Succeeded):
        return None
    if len(outcome.result) > RESULT_ARTIFACT_BYTES_MAX:
        return None
    return Succeeded(moved_result(places(), attempt.job.id, outcome.result))


async def _fill_in(attempt: Attempt, wanted: Wanted, context: Context, calls: Calls) -> None:
    """Put the results of other nodes of the workflow into the payload."""
    host = context.host
    while True:
        try:
            if calls is ON_LOOP:
                results = await host.aresults(wanted)
            else:
                results = host.results(wanted)
            payload = filled(attempt.job.payload, wanted, results)
            attempt.job = msgspec.structs.replace(attempt.job, payload=payload)
            return
        except StoreUnavailable:
            if context.lease_lost or await calls.pause(context, _STORE_PAUSE_S):
                raise


def _overruled(attempt: Attempt) -> Outcome:
    """Return the outcome of an attempt whose handler's result does not count."""
    if attempt.settled is not None:
        return _NOTHING  # its transaction has completed the job
    return ended_by_worker(attempt, attempt.ending or attempt.bound)


def judged(handler: HandlerSpec, value: Any, *, job_id: str) -> Outcome:
    """Return the outcome of a result, checked against what its task declares."""
    if value is None and handler.returns_nothing:
        return _NOTHING
    if isinstance(value, _NO_RESULTS):
        if isinstance(value, ChunkEnded):
            return value.outcome
        if isinstance(value, WorkerResponse):
            return answered(handler, value, job_id=job_id)
        return returned_error(value)
    if handler.bound is not None and isinstance(value, dict) and handler.bound.speaks_answers:
        try:
            answer = answer_in(value)
        except ShapeError as error:
            return _broken(handler, error, value)
        if answer is not None:
            return answered(handler, answer, value, job_id=job_id)
    return _encoded(handler, value)


def answered(
    handler: HandlerSpec, answer: WorkerResponse, whole: Any = None, *, job_id: str
) -> Outcome:
    """Return the outcome of an answer in the protocol's shape; `whole` is its plain data."""
    bound = handler.bound
    policy = None if bound is None else bound.contract.on_invalid_output
    if answer.status is not AnswerStatus.OK or answer.error is not UNSET:
        return failed_answer(answer, policy)
    if bound is not None and bound.describes_answer:
        return _encoded(handler, to_wire(answer) if whole is None else whole)
    if not all(is_reference(each, job_id) for each in answer.artifacts):
        problem = (
            "the answer has an artifact that is none of this job: put it with ctx.artifacts.put(), "
            "and give .wire() of what that returns"
        )
        return _broken(handler, PayloadError(problem, field="artifacts"), answer.outputs)
    for line in answer.logs:
        _LOG.info("%s", line, extra=job_fields())
    return _encoded(handler, answer.outputs)


def _encoded(handler: HandlerSpec, value: Any) -> Outcome:
    """Encode a result: a success, if it fits what its task declares."""
    try:
        result = handler.encode_result(value)
    except Exception as error:  # noqa: BLE001 - results may be user classes
        return _broken(handler, error, value)
    return Succeeded(result)


def _broken(handler: HandlerSpec, error: Exception, value: Any) -> Outcome:
    """Return the outcome of a result that does not fit what its task declares."""
    told = described(error, code=INVALID_OUTPUT)
    policy = None if handler.bound is None else handler.bound.contract.on_invalid_output
    if policy == "store_as_failed":
        told = with_outputs(told, value)
    outcome = broken_output(told, policy, kinds=kinds_of(type(error)))
    return outcome.carrying(error) if isinstance(outcome, Failed | GivenUp) else outcome


class ResultRefused(ContractError):
    """A handler gave a result that does not fit its task; `outcome` is that of its attempt."""

    def __init__(self, message: str, outcome: Outcome) -> None:
        super().__init__(message)
        self.outcome = outcome


def raised_in(attempt: Attempt, error: BaseException) -> Outcome:
    """Return the outcome of an attempt that raised this; a stop by the worker comes first."""
    if attempt.ending is not None:
        return ended_by_worker(attempt, attempt.ending)
    if isinstance(error, UnreadableArguments) and isinstance(error.__cause__, Exception):
        return _unreadable(attempt, error.__cause__)
    return error.outcome if isinstance(error, ResultRefused) else raised(error)


def _unreadable(attempt: Attempt, error: Exception) -> Outcome:
    """Return the outcome of arguments that are no JSON object, or do not fit the handler."""
    if not is_readable(attempt.handler, attempt.job.payload):
        reason, code = DeadReason.UNDECODABLE, "UNDECODABLE"
    else:
        reason, code = DeadReason.INVALID_REQUEST, "INVALID_REQUEST"
    return GivenUp(reason, described(error, code=code)).carrying(error)
