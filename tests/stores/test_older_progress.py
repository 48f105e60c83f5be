# SPDX-License-Identifier: MIT
"""Progress that an older release let into a store is unknown, and stops no reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse import Packhorse
from packhorse.stores.requests import ClaimRequest, JobFilter, ProgressNote, Renewal
from tests.servers.urls import store_url_of


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Packhorse]:
    with store_url_of(request.param, tmp_path) as url:
        app = Packhorse(url)
        yield app
        app.close()


@pytest.mark.parametrize(
    "stored", [{"done": None}, {"done": "half"}, {"done": 10**400}, {"done": 1, "note": None}, [1]]
)
def test_readers_go_on(app: Packhorse, stored: Any) -> None:
    store, job = app.store, app.task(name="work")(lambda: None).enqueue()
    store.run(store.leases.renew(Renewal("w", 60_000_000, queues=("default",), tasks=("work",))))
    asked = ClaimRequest("w", ("default",), ("work",), limit=1, default_timeout_us=1_000_000)
    (held,) = store.run(store.jobs.claim(asked)).jobs
    store.run(store.jobs.note_progress([ProgressNote(held.id, held.fence, stored)]))

    assert job.progress() is None
    assert job.info().progress is None
    assert [info.id for info in app.insights.jobs(JobFilter()).jobs] == [job.id]
    assert app.insights.stats().active == 1
