# SPDX-License-Identifier: MIT
"""`packhorse workers`: list."""

from __future__ import annotations

import click

from packhorse.app import Packhorse
from packhorse.cli.documents import worker_document
from packhorse.cli.render import age, note, print_json, print_table
from packhorse.cli.target import json_option, on_store
from packhorse.clock import SECOND_US, SystemClock, from_datetime

__all__ = ["list_workers", "workers"]


@click.group()
def workers() -> None:
    """List workers."""


@workers.command("list")
@json_option
@on_store
def list_workers(app: Packhorse, *, as_json: bool) -> None:
    """List the workers the store knows, live ones and those that went without leaving."""
    found = app.insights.workers()
    if as_json:
        print_json({"workers": [worker_document(worker) for worker in found]})
        return
    if not found:
        note("No workers.")
        return
    now_us = SystemClock().now_us()
    print_table(
        ("WORKER", "STATE", "HOST", "PID", "RUNNING", "UP", "SEEN", "VERSION", "QUEUES"),
        [
            (
                worker.id,
                "live" if worker.live else "gone",
                worker.host,
                worker.pid,
                f"{worker.running}/{worker.concurrency}",
                age((now_us - from_datetime(worker.started_at)) / SECOND_US),
                age((now_us - from_datetime(worker.renewed_at)) / SECOND_US),
                worker.version,
                worker.queues,
            )
            for worker in found
        ],
    )
