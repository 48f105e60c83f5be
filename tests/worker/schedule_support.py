# SPDX-License-Identifier: MIT
"""A task that notes when the fires of its schedules were due, and every store to try it on."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from packhorse import Context
from packhorse.core.clock import SystemChance
from packhorse.runtime.services.ticker import Ticker
from packhorse.testing import TestApp
from tests.servers.postgres import postgres_url
from tests.servers.redis import redis_url

MIDNIGHT = datetime(2026, 6, 1, tzinfo=UTC)


@pytest.fixture(name="packhorse_url", params=["memory", "sqlite", "postgres", "redis"])
def every_store(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every store; this overrides the plugin's own."""
    match request.param:
        case "postgres":
            yield postgres_url()
        case "redis":
            yield redis_url()
        case scheme:
            yield f"{scheme}://"


class Ran:
    """When the fires of a schedule were due, as its jobs say."""

    def __init__(self, app: TestApp, clock_at: datetime = MIDNIGHT) -> None:
        self.due: list[datetime | None] = []
        self.app = app
        app.clock.set(clock_at)

        @app.task
        def report(ctx: Context, what: str = "all") -> str:
            self.due.append(ctx.job.scheduled_for)
            return what

        self.report = report

    def ticker(self, name: str, *, release: str = "") -> Ticker:
        app = self.app
        return Ticker(
            *(app.store, app.clock, SystemChance(), app.bus, name),
            schedules=app._declared_schedules(),
            release=release,
        )


def hours(*numbers: int) -> list[datetime]:
    return [MIDNIGHT + timedelta(hours=number) for number in numbers]
