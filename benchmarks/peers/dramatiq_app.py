# SPDX-License-Identifier: MIT
"""Dramatiq on Redis. `dramatiq benchmarks.peers.dramatiq_app` is its worker; no bulk submit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.server import server_url
from benchmarks.peers.submitting import Ways
from benchmarks.probe import hitter

broker = RedisBroker(url=server_url())
dramatiq.set_broker(broker)
_hit = hitter()


@dramatiq.actor
def noop(number: int) -> None:
    _hit()


@contextmanager
def ways() -> Iterator[Ways]:
    """From sync code, one at a time."""
    yield Ways(one=noop.send)
