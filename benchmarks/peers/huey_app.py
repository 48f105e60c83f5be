# SPDX-License-Identifier: MIT
"""Huey on Redis. `huey_consumer benchmarks.peers.huey_app.huey` is its worker; no bulk submit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from huey import RedisHuey

from benchmarks.peers.server import server_url
from benchmarks.peers.submitting import Ways
from benchmarks.probe import hitter

huey = RedisHuey("benchmark", results=False, url=server_url())
_hit = hitter()


@huey.task()
def noop(number: int) -> None:
    _hit()


@contextmanager
def ways() -> Iterator[Ways]:
    """From sync code, one at a time."""
    yield Ways(one=noop)
