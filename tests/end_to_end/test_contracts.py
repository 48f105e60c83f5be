# SPDX-License-Identifier: MIT
"""A contract is kept on every server: keys, limits, answers, and what a failure has to show."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse import Contract, Packhorse, PayloadError, RetryPolicy
from packhorse.protocol import AnswerError, WorkerResponse

SOON = RetryPolicy(max_retries=1, initial_delay=0.001, jitter=False)


@pytest.mark.req("S0-6", "S0-27", "S0-33", "S0-37")
@pytest.mark.parametrize("store", ["postgres", "redis"])
def test_a_contract_is_kept_on_a_server(url: str) -> None:
    app = Packhorse(url)
    contract = Contract(
        worker_id="counter",
        inputs={"message": "object", "idempotency_key": "string"},
        outputs={"total": "integer"},
        max_attempts=2,
        rate_limit="1000/min",
        on_invalid_output="store_as_failed",
    )

    @app.task(contract=contract, retry=SOON)
    def count(message: dict[str, Any], idempotency_key: str) -> dict[str, Any]:
        if message.get("break"):
            return {"total": "many", "nothing": [], "large": 12345678901234567}
        if message.get("wait"):
            error = {"code": "not_yet", "message": "later"}
            return {"status": "retryable_error", "error": error, "outputs": {"half": []}}
        return {"total": len(message)}

    with pytest.raises(PayloadError, match="idempotency_key"):
        app.submit({"worker_id": "counter", "inputs": {"message": {}}})
    body = {"message": {"a": 1}, "idempotency_key": "k"}
    good = app.submit({"worker_id": "counter", "inputs": body})
    bad, late = count.enqueue({"break": 1}, "b"), count.enqueue({"wait": 1}, "l")
    app.run(burst=True)
    again = app.submit({"worker_id": "counter", "inputs": body})

    assert (again.id, again.deduplicated, again.result()) == (good.id, True, {"total": 1})
    shown = answer(bad.response())
    assert (shown.status, shown.observability.attempt) == ("invalid_output", 1)
    assert shown.outputs == {"total": "many", "nothing": [], "large": 12345678901234567}
    for attempt, code in ((1, "not_yet"), (2, "poison_message")):
        shown = answer(late.response(attempt))
        assert (shown.status, shown.outputs) == ("retryable_error", {"half": []})
        assert isinstance(shown.error, AnswerError)
        assert shown.error.code == code
    app.close()


def answer(response: WorkerResponse | None) -> WorkerResponse:
    assert response is not None
    return response
