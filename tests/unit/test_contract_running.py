# SPDX-License-Identifier: MIT
"""What a contract says is held: inputs at submit and before the handler, outputs, limits, keys."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from packhorse import (
    Contract,
    ContractError,
    JobDead,
    JobStatus,
    Packhorse,
    PayloadError,
    RetryPolicy,
)
from packhorse.core.clock import new_id
from packhorse.core.job import DeadReason, JobOptions, NewJob, RetryRule
from tests.unit.app_support import STORES, HandWorker, app_on
from tests.unit.contract_support import QUEUE_BASED

ONCE = RetryPolicy(max_retries=1, initial_delay=0.001, jitter=False)


@pytest.fixture(params=STORES)
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Packhorse]:
    made = app_on(request.param, tmp_path)
    yield made
    made.close()


class Runs:
    """A handler of the contract in the requirements, which notes what it was given."""

    def __init__(self, app: Packhorse, folder: Path) -> None:
        path = folder / "contract.yaml"
        path.write_text(QUEUE_BASED, encoding="utf-8")
        self.messages: list[dict[str, Any]] = []
        self.answer: Any = {"status": "ok", "outputs": {"done": 1}}

        @app.task(contract=path)
        async def handle(message: dict[str, Any], idempotency_key: str) -> dict[str, Any]:
            self.messages.append(message)
            answer: dict[str, Any] = self.answer
            return answer

        self.task = handle


def stored_unchecked(app: Packhorse, task: str, payload: object, **options: Any) -> str:
    """A job of a producer that does not know the contract."""
    job = NewJob(new_id(), task, msgspec.json.encode(payload), **options)
    app.store.run(app.store.jobs.submit([job]))
    return job.id


MESSAGES: list[Any] = [[], "text", 5, None]
BAD_BODIES = [
    pytest.param({"message": {}, "idempotency_key": "k", "more": 1}, marks=pytest.mark.req("S0-1")),
    pytest.param({"message": {}}, marks=pytest.mark.req("S0-2")),
    pytest.param({"idempotency_key": "k"}, marks=pytest.mark.req("S0-2", "S0-37")),
    *(
        pytest.param({"message": bad, "idempotency_key": "k"}, marks=pytest.mark.req("S0-3"))
        for bad in MESSAGES
    ),
    pytest.param({"message": {}, "idempotency_key": 5}, marks=pytest.mark.req("S0-3")),
    pytest.param([], marks=pytest.mark.req("S0-3")),
    pytest.param("text", marks=pytest.mark.req("S0-3")),
]


@pytest.mark.parametrize("body", BAD_BODIES)
def test_a_delivery_that_breaks_the_contract_is_refused_at_submit(
    app: Packhorse, tmp_path: Path, body: Any
) -> None:
    runs = Runs(app, tmp_path)

    with pytest.raises((PayloadError, ContractError)):
        app.submit({"id": "t", "type": "handle", "payload": body})

    assert app.depth("default") == 0
    assert runs.messages == []


@pytest.mark.req("S0-4", "X-6")
@pytest.mark.parametrize("body", BAD_BODIES)
def test_a_delivery_that_breaks_the_contract_is_dead_before_the_handler_and_never_retried(
    app: Packhorse, tmp_path: Path, body: Any
) -> None:
    runs = Runs(app, tmp_path)
    job = app.job(stored_unchecked(app, "handle", body))

    app.run(burst=True)

    info, answer = job.info(), job.response()
    assert runs.messages == []
    assert (info.status, info.dead_reason) == (JobStatus.DEAD, DeadReason.INVALID_REQUEST)
    assert (info.attempts, info.failures) == (1, 0)
    assert answer is not None
    assert (answer.status, answer.error.code) == ("invalid_request", "invalid_request")  # type: ignore[union-attr]


def test_a_refusal_names_the_place_and_shows_no_payload(app: Packhorse) -> None:
    schema = {
        "type": "object",
        "properties": {"order": {"type": "object", "properties": {"cents": {"minimum": 1}}}},
    }

    @app.task(contract=Contract(worker_id="payer", inputs=schema))
    def pay(order: dict[str, int]) -> None: ...

    with pytest.raises(ContractError, match=r"'order\.cents' broke the contract of payer") as told:
        pay.enqueue({"cents": -4711})

    assert told.value.field == "order.cents"
    assert "4711" not in str(told.value)
    with pytest.raises(ContractError):
        pay.enqueue_many([{"order": {"cents": 0}}])


@pytest.mark.req("S0-5")
@pytest.mark.parametrize(
    ("answer", "valid"),
    [
        ({"status": "ok", "outputs": {"a": 1}}, True),
        ({"status": "ok", "outputs": {}, "artifacts": []}, True),
        ({"status": "fine", "extra": 1}, True),
        ({}, True),
        ({"status": 5}, False),
        ({"status": "fine", "outputs": []}, False),
        ({"status": "ok", "outputs": "text"}, False),
        ("text", False),
        (None, False),
    ],
)
def test_a_result_is_checked_before_it_is_stored(
    app: Packhorse, tmp_path: Path, answer: Any, *, valid: bool
) -> None:
    runs = Runs(app, tmp_path)
    runs.answer = answer
    job = runs.task.using(retry=RetryPolicy(max_retries=0)).enqueue({}, "k")

    app.run(burst=True)

    if valid:
        assert job.result() == answer
    else:
        assert job.status() is JobStatus.DEAD
        response = job.response()
        assert response is not None
        assert response.status == "invalid_output"


@pytest.mark.req("S0-6")
@pytest.mark.parametrize(
    ("policy", "attempts", "outputs"),
    [("retry", 2, {}), ("dead", 1, {}), ("store_as_failed", 1, {"total": "many"})],
)
def test_an_invalid_output_is_never_a_success_and_follows_its_policy(
    app: Packhorse, policy: Any, attempts: int, outputs: dict[str, Any]
) -> None:
    contract = Contract(outputs={"total": "integer"}, on_invalid_output=policy)

    @app.task(contract=contract, retry=ONCE)
    def count() -> dict[str, Any]:
        return {"total": "many"}

    job = count.enqueue()
    app.run(burst=True)

    info, answer = job.info(), job.response()
    assert (info.status, info.attempts) == (JobStatus.DEAD, attempts)
    assert info.error is not None
    assert info.error.code == "INVALID_OUTPUT"
    assert answer is not None
    assert (answer.status, answer.outputs) == ("invalid_output", outputs)
    with pytest.raises(JobDead):
        job.result()


# ------------------------------------------------------------------------------------ limits


@pytest.mark.req("S0-9")
def test_no_option_and_no_call_goes_beyond_the_timeout_of_a_contract(app: Packhorse) -> None:
    stopped: list[float] = []

    @app.task(contract=Contract(timeout=0.05, max_attempts=1))
    async def slow() -> None:
        try:
            await asyncio.sleep(2)
        except asyncio.CancelledError:
            stopped.append(1)
            raise

    with pytest.raises(ContractError, match="a timeout of 10s is above 50ms"):
        slow.using(timeout="10s").enqueue()
    with pytest.raises(ContractError, match="a timeout of 10s is above"):
        app.submit({"id": "t", "type": "slow", "payload": {}, "timeoutMs": 10_000})
    jobs = [slow.enqueue().id, stored_unchecked(app, "slow", {}, timeout_us=10_000_000)]
    app.run(burst=True)

    assert stopped == [1, 1]
    for job_id in jobs:
        answer = app.job(job_id).response()
        assert answer is not None
        assert answer.error.cause == "timeout"  # type: ignore[union-attr]


@pytest.mark.req("S0-10", "X-1", "S0-21")
def test_a_handler_starts_no_more_often_than_its_contract_says(app: Packhorse) -> None:
    starts: list[str] = []

    @app.task(contract=Contract(max_attempts=2), retry=ONCE)
    def fail(name: str) -> None:
        starts.append(name)
        raise ValueError(name)

    with pytest.raises(ContractError, match="max_retries of 5 is above max_attempts of 2"):
        fail.using(retry=RetryPolicy(max_retries=5)).enqueue("refused")
    job = fail.enqueue("known")
    eager = RetryRule(max_retries=9, initial_us=1000, jitter=False)
    stored_unchecked(app, "fail", {"name": "unknown"}, options=JobOptions(retry=eager))
    app.run(burst=True)

    assert sorted(starts) == ["known", "known", "unknown", "unknown"]
    answer = job.response()
    assert answer is not None
    assert answer.observability.attempt == 2
    assert (answer.error.code, answer.error.cause) == ("poison_message", "exception")  # type: ignore[union-attr]
    assert job.info().error.message == "known"  # type: ignore[union-attr]


@pytest.mark.req("S0-15", "S0-36", "X-13")
def test_a_rate_is_for_each_tenant_and_a_lost_start_counts(app: Packhorse) -> None:
    @app.task(contract=Contract(rate_limit="1/min", max_attempts=2))
    def work() -> None: ...

    for tenant in ("acme", "acme", "beta", ""):
        work.using(tenant=tenant).enqueue()
    with pytest.raises(ContractError, match="a call brings no rate_key"):
        work.using(rate_key="mine").enqueue()

    taken = HandWorker(app.store, "work").take(10)

    assert sorted(job.tenant for job in taken) == ["", "acme", "beta"]
    assert {msgspec.json.decode(job.options or "{}")["max_crashes"] for job in taken} == {0}


# ------------------------------------------------------------------------- idempotency keys


@pytest.mark.req("S0-37", "S0-17")
def test_the_key_among_the_inputs_is_the_key_of_the_job(app: Packhorse, tmp_path: Path) -> None:
    runs = Runs(app, tmp_path)
    body = {"message": {"a": 1}, "idempotency_key": "o-17"}
    first = app.submit({"id": "one", "type": "handle", "payload": body})
    app.run(burst=True)

    again = app.submit({"id": "two", "type": "handle", "payload": body})
    called = runs.task.enqueue({"a": 1}, "o-17")
    asked = app.submit({"worker_id": "queue-based-worker", "inputs": body})
    app.run(burst=True)

    assert runs.messages == [{"a": 1}]
    for other in (again, called, asked):
        assert (other.id, other.deduplicated) == (first.id, True)
    assert first.info().idempotency_key == "o-17"
    with pytest.raises(ContractError, match="is not the idempotency key of the call"):
        runs.task.using(idempotency_key="other").enqueue({}, "o-18")


@pytest.mark.req("S0-37")
def test_a_contract_that_requires_a_key_refuses_what_comes_without_one(app: Packhorse) -> None:
    ran: list[str] = []

    @app.task(contract=Contract(worker_id="payer", idempotency_key="required"))
    def pay(order: str) -> None:
        ran.append(order)

    with pytest.raises(ContractError, match="requires an idempotency key") as told:
        pay.enqueue("a")
    with pytest.raises(ContractError, match="requires an idempotency key"):
        app.submit({"worker_id": "payer", "inputs": {"order": "a"}})
    stray = app.job(stored_unchecked(app, "pay", {"order": "b"}))
    pay.using(idempotency_key="c").enqueue("c")
    request = {"worker_id": "payer", "inputs": {"order": "d"}, "idempotency_key": "d"}
    jobs = [app.submit(request), app.submit(msgspec.json.encode(request))]
    app.run(burst=True)

    assert told.value.field == "idempotency_key"
    assert sorted(ran) == ["c", "d"]
    assert [job.deduplicated for job in jobs] == [False, True]
    assert stray.info().dead_reason is DeadReason.INVALID_REQUEST


@pytest.mark.req("S0-29")
def test_a_request_brings_its_trace_and_its_limits(app: Packhorse) -> None:
    contract = Contract(worker_id="summary", timeout="60s", max_tokens=1500, tools_allowed=["llm"])

    @app.task(queue="ai", contract=contract)
    def summarise(text: str) -> str:
        return text[:3]

    def request(**limits: Any) -> dict[str, Any]:
        return {
            "worker_id": "summary",
            "version": "1.0",
            "trace": {"trace_id": "t-1"},
            "inputs": {"text": "words"},
            "constraints": limits,
        }

    job = app.submit(request(timeout_seconds=5, max_tokens=2000, tools_allowed=["llm", "web"]))

    info = job.info()
    assert (info.task, info.queue, info.trace_id) == ("summarise", "ai", "t-1")
    assert info.timeout == 5
    tighter: list[dict[str, Any]] = [
        *({"timeout_seconds": 61}, {"max_tokens": 10}, {"tools_allowed": []})
    ]
    for limits in tighter:
        with pytest.raises(ContractError):
            app.submit(request(**limits))
