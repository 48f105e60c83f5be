# SPDX-License-Identifier: MIT
"""`packhorse stats`: what was done and what waits, in the worker protocol's shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from packhorse.cli.breakers import breaker_rows
from packhorse.cli.options import json_option, on_store
from packhorse.cli.output import age, ages, print_json, print_table, print_text, span_ms

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.insights import QueueInfo

__all__ = ["stats"]


@click.command()
@json_option
@on_store
def stats(app: Packhorse, *, as_json: bool) -> None:
    """Show what was done and what waits.

    Jobs are counted, not attempts: succeeded are completed ones, failed are dead ones, and a job
    that waits for a retry is pending. What retention has removed is no longer counted. Demand is
    ready and running jobs together; wanted is how many workers a queue's autoscale asks for.
    Circuit breakers are shown that are open, or have counted failures of late.
    """
    from packhorse.cli.display import document_of
    from packhorse.protocol import to_wire

    view = app.insights
    document = to_wire(view.stats())
    waited = {queue.name: queue for queue in view.queues()}
    for name, queue in document.get("queues", {}).items():
        queue.update(_oldest(waited.get(name)))
    tripped = view.breakers()
    signals = {signal.queue: document_of(signal) for signal in view.scaling()}
    if as_json:
        found = [document_of(one) for one in tripped]
        print_json({**document, "scaling": list(signals.values()), "breakers": found})
        return
    print_text(
        f"processed {document['totalProcessed']}: succeeded {document['succeeded']}, "
        f"failed {document['failed']}; active {document['active']}{_speed(document)}"
    )
    if document.get("queues"):
        print_text("")
        headers = ("QUEUE", "PENDING", "ACTIVE", "COMPLETED", "FAILED", "OLDEST")
        print_table(
            (*headers, "DEMAND", "WORKERS", "WANTED"),
            [
                _row(name, queue, signals.get(name, {}))
                for name, queue in document["queues"].items()
            ],
        )
    if tripped:
        print_text("")
        breaker_rows(tripped)


def _oldest(queue: QueueInfo | None) -> dict[str, Any]:
    """How long the longest-waiting ready jobs have waited; absent when none is ready."""
    if queue is None or queue.oldest_ready_s is None:
        return {}
    from packhorse.cli.display import waited_document

    return waited_document(queue)


def _speed(document: Mapping[str, Any]) -> str:
    average = document.get("avgExecutionMs")
    taken = "" if average is None else f"; {span_ms(average)} on average"
    up = document["uptimeMs"]
    return f"{taken}; workers up {age(up / 1000)}" if up else f"{taken}; no live worker"


def _row(name: str, queue: Mapping[str, Any], signal: Mapping[str, Any]) -> tuple[object, ...]:
    waited_ms = queue.get("oldestReadyMsByPriority", {})
    return (
        name,
        *(queue[column] for column in ("pending", "active", "completed", "failed")),
        ages({priority: span_ms / 1000 for priority, span_ms in waited_ms.items()}),
        *(signal.get(column) for column in ("demand", "workers", "wanted")),
    )
