# SPDX-License-Identifier: MIT
"""Batches on every store: stopped, resumed and cancelled while they are filled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from packhorse import RetryPolicy
from packhorse.group_errors import BatchConflict
from packhorse.testing import TestApp
from tests.worker.schedule_support import every_store

__all__ = ["every_store"]  # pytest finds the fixture here


# ------------------------------------------------------------------------- stopped by an error


def test_a_batch_that_an_error_stops_while_it_is_filled_is_filled_and_ends(
    packhorse_app: TestApp,
) -> None:
    called: list[str] = []

    @packhorse_app.task(retry=RetryPolicy(max_retries=0))
    def check(number: int) -> int:
        if number == 0:
            raise ValueError("not zero")
        return number

    @packhorse_app.task
    def tell(what: str) -> None:
        called.append(what)

    def items() -> Iterator[int]:
        for number in range(1_200):
            if number == 700:
                packhorse_app.run_jobs()
            yield number

    batch = packhorse_app.batch(
        *(check, items()), batch_size=10, stop_on_error=True, on_complete=tell.call("complete")
    )
    packhorse_app.run_jobs()

    progress = batch.progress()
    assert (progress.status, progress.total, progress.failed) == ("failed", 1_200, 1)
    assert called == ["complete"]
    assert batch.retry_failed() > 0
    with pytest.raises(BatchConflict, match="filled"):
        batch.resume(range(1_200))


def test_a_batch_that_an_error_stopped_is_resumed_when_its_producer_has_died(
    packhorse_app: TestApp,
) -> None:
    @packhorse_app.task(retry=RetryPolicy(max_retries=0))
    def check(number: int) -> int:
        if number == 0:
            raise ValueError("not zero")
        return number

    def dying() -> Iterator[int]:
        yield from range(50)
        packhorse_app.run_jobs()
        raise OSError("the network is gone")

    with pytest.raises(OSError, match="gone"):
        packhorse_app.batch(check, dying(), batch_size=1, stop_on_error=True, id="import")
    batch = packhorse_app.batches.get("import")
    assert batch.document().stopped == "error"
    batch.resume(range(60))
    packhorse_app.run_jobs()

    assert (batch.progress().status, batch.progress().total) == ("failed", 60)


def test_a_cancelled_batch_is_not_filled_any_more(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    def check(number: int) -> int:
        return number

    def items() -> Iterator[int]:
        for number in range(1_200):
            if number == 700:
                packhorse_app.batches.get("import").cancel()
            yield number

    with pytest.raises(BatchConflict, match="cancelled"):
        packhorse_app.batch(check, items(), batch_size=10, id="import")
