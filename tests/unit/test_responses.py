# SPDX-License-Identifier: MIT
"""The table between what becomes of a job and the worker protocol's answers, read both ways."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from packhorse import Contract, JobStatus, Packhorse, Reject, RetryPolicy, Snooze
from packhorse.core.job import AttemptError, DeadReason
from packhorse.core.responses import OUTPUTS_LENGTH_MAX, answer_status
from packhorse.protocol import AnswerError, AnswerStatus, WorkerResponse, to_wire
from tests.unit.app_support import STORES, app_on, memory_app

NEVER = RetryPolicy(max_retries=0)
SOON = RetryPolicy(max_retries=1, initial_delay=0.001, jitter=False)


@pytest.fixture(params=STORES)
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Packhorse]:
    made = app_on(request.param, tmp_path)
    yield made
    made.close()


def answer_of(job: Any, attempt: int | None = None) -> WorkerResponse:
    answer = job.response(attempt)
    assert isinstance(answer, WorkerResponse)
    return answer


#: What a handler answers, what becomes of its job, and what it is answered with.
TABLE = [
    ("ok", JobStatus.COMPLETED, None, None),
    ("retryable_error", JobStatus.DEAD, DeadReason.POISON_MESSAGE, "poison_message"),
    ("invalid_request", JobStatus.DEAD, DeadReason.INVALID_REQUEST, "no_diff"),
    ("invalid_output", JobStatus.DEAD, DeadReason.POISON_MESSAGE, "poison_message"),
    ("needs_human", JobStatus.PENDING, None, "no_diff"),
]


@pytest.mark.req("X-3", "S0-26", "S0-34")
@pytest.mark.parametrize("as_data", [True, False])
@pytest.mark.parametrize(("status", "becomes", "reason", "code"), TABLE)
def test_an_answer_becomes_a_status_and_the_status_the_answer(
    app: Packhorse, *, status: str, becomes: JobStatus, reason: Any, code: str | None, as_data: bool
) -> None:
    failed = status != "ok"
    told = {"code": "no_diff", "message": "nothing to read"}
    answer = {"status": status, "outputs": {"a": 1}, **({"error": told} if failed else {})}

    @app.task(contract=Contract(worker_id="reviewer"), retry=NEVER)
    def review() -> dict[str, Any]:
        return answer if as_data else WorkerResponse.parse(answer)  # type: ignore[return-value]

    job = review.enqueue()
    app.run(burst=True)

    info, response = job.info(), answer_of(job)
    assert (info.status, info.dead_reason) == (becomes, reason)
    assert response.status == status
    if failed:
        assert isinstance(response.error, AnswerError)
        assert (response.error.code, response.error.retryable) == (
            code,
            becomes is JobStatus.PENDING,
        )
        assert response.error.message == "nothing to read"
    if status != "invalid_output":  # its policy keeps none
        assert response.outputs == {"a": 1}


def test_every_status_of_the_protocol_is_in_the_table() -> None:
    assert [row[0] for row in TABLE] == list(AnswerStatus)


@pytest.mark.req("S0-33", "S0-35")
def test_every_attempt_has_an_answer_with_its_number(app: Packhorse) -> None:
    @app.task(contract=Contract(worker_id="counter"), retry=SOON)
    def count() -> WorkerResponse:
        time.sleep(0.02)
        error = AnswerError(code="not_yet", message="try again")
        answers = [
            WorkerResponse(status=AnswerStatus.RETRYABLE_ERROR, error=error, outputs={"so_far": 1}),
            WorkerResponse(status=AnswerStatus.OK, outputs={"total": 2}),
        ]
        tries.append(1)
        return answers[len(tries) - 1]

    tries: list[int] = []
    job = count.enqueue()
    assert job.response() is None
    app.run(burst=True)

    first, last = answer_of(job, 1), answer_of(job)
    assert cast("Any", job.result()) == {"total": 2}
    assert job.response(3) is None
    assert (first.status, first.outputs) == ("retryable_error", {"so_far": 1})
    assert first.error == AnswerError(code="not_yet", message="try again", retryable=True)
    wire = to_wire(last)
    assert wire.pop("observability")["log_fields"] == {"worker_id": "counter"}
    assert wire == {"status": "ok", "outputs": {"total": 2}, "logs": [], "artifacts": []}
    assert [answer_of(job, number).observability.attempt for number in (1, 2)] == [1, 2]
    assert all(20 <= one.observability.duration_ms < 20_000 for one in (first, last))


@pytest.mark.req("S0-26", "S0-34")
@pytest.mark.parametrize(
    ("ends", "status", "code"),
    [
        (ValueError("no"), "retryable_error", "poison_message"),
        (Reject("never"), "invalid_request", "rejected"),
    ],
)
def test_a_failure_of_an_ordinary_task_is_answered_too(
    app: Packhorse, ends: BaseException, status: str, code: str
) -> None:
    @app.task(retry=NEVER)
    def work() -> None:
        raise ends

    job = work.enqueue()
    app.run(burst=True)

    response = answer_of(job)
    assert response.status == status
    assert isinstance(response.error, AnswerError)
    assert response.error.code == code
    assert response.observability.log_fields == {"worker_id": "work"}


def test_a_cancelled_and_a_snoozed_job_are_answered(app: Packhorse) -> None:
    @app.task
    def later() -> Snooze:
        return Snooze("1h")

    cancelled, snoozed = later.using(delay="1h").enqueue(), later.enqueue()
    cancelled.cancel()
    app.run(burst=True)

    for job, code, retryable in ((cancelled, "cancelled", False), (snoozed, "snoozed", True)):
        response = answer_of(job)
        assert response.status == "retryable_error"
        assert response.error == AnswerError(code=code, retryable=retryable)


@pytest.mark.req("S0-27")
def test_partial_outputs_come_only_with_an_error_code(app: Packhorse) -> None:
    @app.task(contract=Contract(worker_id="w"), retry=NEVER)
    def vague() -> dict[str, Any]:
        return {"status": "retryable_error", "outputs": {"half": 1}}

    job = vague.enqueue()
    app.run(burst=True)

    response = answer_of(job)
    assert (response.status, response.outputs) == ("invalid_output", {})
    assert isinstance(response.error, AnswerError)
    assert response.error.cause == "invalid_output"


def test_what_an_ordinary_task_returns_is_a_result_whatever_it_looks_like() -> None:
    app = memory_app()
    answer = {"status": "needs_human", "outputs": {}}

    @app.task
    def work() -> dict[str, Any]:
        return answer

    job = work.enqueue()
    app.run(burst=True)

    assert job.result() == answer
    assert answer_of(job).status == "ok"


@pytest.mark.parametrize(("result", "outputs"), [(5, {"result": 5}), (None, {}), ({"a": 1}, None)])
def test_a_result_that_is_no_object_is_an_output_of_its_own(result: Any, outputs: Any) -> None:
    app = memory_app()

    @app.task
    def work() -> Any:
        return result

    job = work.enqueue()
    app.run(burst=True)

    assert answer_of(job).outputs == (result if outputs is None else outputs)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"status": "ok", "outputs": [1]}, "$.outputs"),
        ({"status": "ok", "error": {"code": "a"}}, "it is one or the other"),
        ({"status": "ok", "outputs": {}, "artifacts": [{"id": "a"}]}, "that is none of this job"),
    ],
)
def test_an_answer_that_contradicts_itself_is_an_invalid_output(answer: Any, words: str) -> None:
    app = memory_app()

    @app.task(contract=Contract(worker_id="w"), retry=NEVER)
    def work() -> Any:
        return answer

    job = work.enqueue()
    app.run(burst=True)

    assert answer_of(job).status == "invalid_output"
    error = job.info().error
    assert error is not None
    assert words in error.message


def test_outputs_of_a_failure_that_are_too_long_are_not_kept() -> None:
    app = memory_app()

    @app.task(retry=NEVER)
    def work() -> WorkerResponse:
        error = AnswerError(code="cut")
        outputs = {"text": "x" * OUTPUTS_LENGTH_MAX}
        return WorkerResponse(status=AnswerStatus.NEEDS_HUMAN, error=error, outputs=outputs)

    job = work.enqueue()
    app.run(burst=True)

    response = answer_of(job)
    assert response.outputs == {}
    assert isinstance(response.error, AnswerError)
    assert "were not kept" in response.error.message


async def test_the_twin_answers_the_same() -> None:
    app = memory_app()

    @app.task
    async def work() -> dict[str, int]:
        return {"a": 1}

    job = await work.aenqueue()
    await app.arun(burst=True)

    response = await job.aresponse()
    assert response is not None
    assert response.outputs == {"a": 1}


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("WORKER_LOST", "retryable_error"),
        ("UNDECODABLE", "invalid_request"),
        ("RESULT_TOO_LARGE", "invalid_output"),
        ("TOOL_NOT_ALLOWED", "invalid_request"),
    ],
)
def test_codes_of_our_own_have_their_place_in_the_table(code: str, status: str) -> None:
    error = AttemptError(type="E", message="", code=code)

    assert answer_status(JobStatus.FAILED, error) == status
