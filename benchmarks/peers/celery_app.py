# SPDX-License-Identifier: MIT
"""Celery on Redis. `celery -A benchmarks.peers.celery_app worker` is its worker; no bulk submit.

The jobs run in processes that Celery forks, so each of them takes its own place in the probe.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from celery import Celery

from benchmarks.peers.server import server_url
from benchmarks.peers.submitting import Ways
from benchmarks.probe import hitter

app = Celery("benchmark", broker=server_url())
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,  # a job outlives its worker, as everywhere else here
    worker_prefetch_multiplier=100,  # its documentation: many for short jobs
    broker_connection_retry_on_startup=True,
)
_own_hitter = cache(hitter)


@app.task(name="noop")
def noop(number: int) -> None:
    _own_hitter()()


@contextmanager
def ways() -> Iterator[Ways]:
    """From sync code, one at a time."""
    yield Ways(one=noop.delay)
