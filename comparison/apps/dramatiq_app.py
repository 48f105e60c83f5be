# SPDX-License-Identifier: MIT
"""Dramatiq on Redis. `dramatiq comparison.apps.dramatiq_app`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from comparison.place import is_quick, store_url
from comparison.record import working
from comparison.submit import Submit

#: Milliseconds, and commands of a million: short of these, 60 s and one of a thousand.
_QUICK: dict[str, Any] = {"heartbeat_timeout": 10_000, "maintenance_chance": 100_000}

broker = RedisBroker(url=store_url(), **(_QUICK if is_quick() else {}))
dramatiq.set_broker(broker)


@dramatiq.actor
def work(number: int, seconds: float) -> None:
    with working(number):
        time.sleep(seconds)


@asynccontextmanager
async def submitting() -> AsyncIterator[Submit]:
    yield work.send


def held() -> int:
    kept: int = broker.client.hlen("dramatiq:default.msgs")
    return kept
