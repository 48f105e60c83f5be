# SPDX-License-Identifier: MIT
"""Packhorse on any of its stores. `packhorse worker comparison.apps.packhorse_app:app`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from comparison.place import store_url
from comparison.record import working
from comparison.submit import Submit
from packhorse import Packhorse
from packhorse.core.job import TERMINAL
from packhorse.stores import open_store

app = Packhorse(store_url())


@app.task
async def work(number: int, seconds: float) -> None:
    with working(number):
        await asyncio.sleep(seconds)


@asynccontextmanager
async def submitting() -> AsyncIterator[Submit]:
    yield work.aenqueue


def prepare() -> None:
    store = open_store(store_url())
    store.migrate()
    store.close()


def held() -> int:
    store = open_store(store_url())
    try:
        counts = store.run(store.inspection.counts())
    finally:
        store.close()
    each = [one.by_status for one in counts]
    return sum(n for by in each for status, n in by.items() if status not in TERMINAL)
