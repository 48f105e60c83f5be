# SPDX-License-Identifier: MIT
"""What is left of a delivery that failed as often as it may, on every store."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse import Contract, DeadReason, JobStatus
from packhorse.protocol import AnswerError
from packhorse.testing import TestApp
from tests.servers.every_store import every_store

__all__ = ["every_store"]  # pytest finds the fixture here


@pytest.mark.req("S0-10", "S0-21", "S0-22")
def test_a_dead_letter_keeps_the_message_its_key_the_attempts_and_the_last_error(
    packhorse_app: TestApp,
) -> None:
    ran: list[int] = []

    @packhorse_app.task(contract=Contract(worker_id="w", max_attempts=2))
    def handle(message: dict[str, Any]) -> None:
        ran.append(len(ran) + 1)
        raise ValueError(f"number {ran[-1]}")

    job = handle.using(idempotency_key="o-17").enqueue({"order": 17})
    packhorse_app.run_jobs()

    (letter,) = packhorse_app.insights.dead_letters().jobs
    assert (letter.id, letter.status, ran) == (job.id, JobStatus.DEAD, [1, 2])
    assert (letter.dead_reason, letter.attempts) == (DeadReason.POISON_MESSAGE, 2)
    assert letter.idempotency_key == "o-17"
    assert letter.error is not None
    assert (letter.error.type, letter.error.message) == ("ValueError", "number 2")
    assert job.wire().payload == {"message": {"order": 17}}
    answer = job.response()
    assert answer is not None
    assert isinstance(answer.error, AnswerError)
    assert (answer.error.code, answer.error.cause) == ("poison_message", "exception")
