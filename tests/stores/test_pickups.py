# SPDX-License-Identifier: MIT
"""No job that is submitted and waited for is left to the poll of an idle worker, on any store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from packhorse import Packhorse
from tests.servers.urls import store_url_of

#: When some in a hundred were missed, nearly every run of so many met one.
_JOBS: Final = 200
#: Far longer than a job takes, and far shorter than the poll that must not be needed.
_PATIENCE: Final = timedelta(seconds=15)
_POLL: Final = timedelta(minutes=10)


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with store_url_of(request.param, tmp_path) as made:
        yield made


def _app(url: str) -> Packhorse:
    app = Packhorse(url)

    @app.task
    async def echo(number: int) -> int:
        return number

    return app


@pytest.mark.timeout(120)
def test_a_job_that_is_waited_for_does_not_wait_for_the_poll(url: str) -> None:
    async def story() -> list[int]:
        serving, asking = _app(url), _app(url)
        worker = asyncio.create_task(serving.arun(handle_signals=False, poll_interval=_POLL))
        results = []
        for number in range(_JOBS):
            job = await asking.tasks["echo"].aenqueue(number)
            results.append(await job.aresult(timeout=_PATIENCE))
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        serving.close()
        asking.close()
        return results

    assert asyncio.run(story()) == list(range(_JOBS))
