# SPDX-License-Identifier: MIT
"""A task that notes when the fires of its schedules were due, and every store to try it on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from packhorse import Context
from packhorse.core.clock import SystemChance
from packhorse.runtime.services.service import ServiceContext
from packhorse.runtime.services.ticker import Ticker
from packhorse.testing import TestApp
from tests.servers.every_store import every_store

__all__ = ["MIDNIGHT", "Ran", "context", "every_store", "hours"]

MIDNIGHT = datetime(2026, 6, 1, tzinfo=UTC)


def context(app: TestApp, worker: str) -> ServiceContext:
    return ServiceContext(app.store, app.clock, SystemChance(), app.bus, worker)


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

    def next_release(self) -> None:
        """Have a program begin that declares its schedules itself."""
        self.app._declared.clear()

    def ticker(self, name: str, *, release: str = "") -> Ticker:
        app = self.app
        return Ticker(
            context(app, name),
            schedules=app._declared_schedules(),
            release=release,
        )


def hours(*numbers: int) -> list[datetime]:
    return [MIDNIGHT + timedelta(hours=number) for number in numbers]
