# SPDX-License-Identifier: MIT
"""What happens to jobs on a store that can never hold what one of them came to."""

from __future__ import annotations

from packhorse import Packhorse, RetryPolicy
from packhorse.events import StoreTrouble

NEIGHBOURS = 30


def check_that_one_bad_result_is_a_dead_letter(app: Packhorse, result: str) -> None:
    """The job is dead with its reason, its neighbours are completed, and the worker goes on."""
    trouble: list[StoreTrouble] = []
    app.on(StoreTrouble)(trouble.append)

    @app.task
    async def work(number: int) -> int:
        return number

    @app.task(max_result_bytes=100_000_000)
    async def spoil() -> str:
        return result

    before = work.enqueue_many([{"number": n} for n in range(NEIGHBOURS)])
    bad = spoil.enqueue()
    behind = work.enqueue_many([{"number": n} for n in range(NEIGHBOURS)])

    report = app.run(burst=True, concurrency=2 * NEIGHBOURS + 1)

    assert [job.result(timeout=0) for job in (*before, *behind)] == [*range(NEIGHBOURS)] * 2
    info = bad.info()
    assert (str(info.status), info.dead_reason, info.attempts) == ("dead", "rejected", 1)
    assert info.error is not None
    assert info.error.code == "STORE_REFUSED"
    assert info.error.message.isascii()
    assert "redrive the job" in info.error.message
    assert report.succeeded == 2 * NEIGHBOURS
    # Redis ends the connection, which may carry a claim besides; no settlement is offered for ever.
    assert "settle" not in [each.operation for each in trouble]


def check_that_a_bad_error_is_told_in_plain_words(app: Packhorse, message: str) -> None:
    """The job is tried again as its policy says, and ends with its error in ASCII."""
    attempts: list[int] = []

    @app.task(retry=RetryPolicy(max_retries=1, initial_delay="1ms", jitter=False))
    async def fail() -> None:
        attempts.append(1)
        raise ValueError(message)

    job = fail.enqueue()
    app.run(burst=True)

    info = job.info()
    assert (len(attempts), info.dead_reason, info.failures) == (2, "poison_message", 2)
    assert info.error is not None
    assert (info.error.type, info.error.code) == ("ValueError", "EXCEPTION")
    assert info.error.message == message.encode("ascii", "backslashreplace").decode()
    assert [attempt.status for attempt in job.history()] == ["failed", "failed"]
