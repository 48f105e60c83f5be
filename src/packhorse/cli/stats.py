# SPDX-License-Identifier: MIT
"""`packhorse stats`: what was done and what waits, in the worker protocol's shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from packhorse.cli.breakers import breaker_rows
from packhorse.cli.options import json_option, on_store
from packhorse.cli.output import (
    age,
    ages,
    print_json,
    print_struct,
    print_table,
    print_text,
    span_ms,
)
from packhorse.cli.queues import with_bytes
from packhorse.core.sizes import fill_text

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.client.history import History, TaskHistory
    from packhorse.insights import QueueInfo


@click.command()
@click.option(
    "--range",
    "span",
    type=click.Choice(("15m", "1h", "6h", "24h", "7d", "30d")),
    help="Show what was done over this time, by task, instead.",
)
@json_option
@on_store
def stats(app: Packhorse, *, span: str | None, as_json: bool) -> None:
    """Show what was done and what waits.

    Jobs are counted, not attempts: succeeded are completed ones, failed are dead ones, and a job
    that waits for a retry is pending. What retention has removed is no longer counted. Demand is
    ready and running jobs together; wanted is how many workers a queue's autoscale asks for.
    Circuit breakers are shown that are open, or have counted failures of late.

    With --range: attempts over that time, and how long 50, 95 and 99 % of them waited and ran.
    """
    from packhorse.client.documents import bytes_document, document_of
    from packhorse.protocol import to_wire

    view = app.insights
    if span is not None:
        _show_history(view.history(span), as_json=as_json)
        return
    document = to_wire(view.stats())
    waited = {queue.name: queue for queue in view.queues()}
    for name, queue in document.get("queues", {}).items():
        queue.update(_more(waited.get(name)))
    tripped = view.breakers()
    signals = {signal.queue: document_of(signal) for signal in view.scaling()}
    held = view.store_bytes()
    if as_json:
        found = [document_of(one) for one in tripped]
        scaling = list(signals.values())
        print_json({**document, **bytes_document(held), "scaling": scaling, "breakers": found})
        return
    print_text(
        f"processed {document['totalProcessed']}: succeeded {document['succeeded']}, "
        f"failed {document['failed']}; active {document['active']}{_speed(document)}"
    )
    if document.get("queues"):
        print_text("")
        headers = ("QUEUE", "PENDING", "ACTIVE", "COMPLETED", "FAILED", "OLDEST")
        named = document["queues"].items()
        rows = [_row(name, queue, signals.get(name, {})) for name, queue in named]
        rows = with_bytes(rows, [waited.get(name) for name, _ in named])
        columns = (*headers, "DEMAND", "WORKERS", "WANTED", "BYTES")
        print_table(columns[: len(rows[0])], rows)
    if held is not None:
        print_text(f"\nthe store holds {fill_text(*held)}")
    if tripped:
        print_text("")
        breaker_rows(tripped)


def _show_history(found: History, *, as_json: bool) -> None:
    if as_json:
        print_struct(found)
        return
    attempts = sum(point.attempts for point in found.points)
    failed = sum(point.retried + point.dead for point in found.points)
    worst = max((queue.oldest_ready_ms_max for queue in found.queues), default=0)
    print_text(
        f"{attempts} attempts in {found.range}, {failed} failed; the oldest ready job waited for "
        f"{age(worst / 1000)}"
    )
    print_text(f"tasks since {found.tasks_since:%Y-%m-%d %H:%M} UTC, spans approximate:\n")
    headers = ("TASK", "ATTEMPTS", "FAILED", "DEAD", "WAIT p50", "p95", "p99")
    print_table((*headers, "RUN p50", "p95", "p99"), [_task_row(task) for task in found.tasks])


def _task_row(task: TaskHistory) -> tuple[object, ...]:
    spans = (
        *(task.wait_p50_ms, task.wait_p95_ms, task.wait_p99_ms),
        *(task.run_p50_ms, task.run_p95_ms, task.run_p99_ms),
    )
    shown = ("-" if each is None else span_ms(each) for each in spans)
    return (task.task, task.attempts, task.failed, task.dead, *shown)


def _more(queue: QueueInfo | None) -> dict[str, Any]:
    """Describe how long ready jobs have waited, if some are, and bytes, if they are limited."""
    from packhorse.client.documents import waited_document

    if queue is None:
        return {}
    ready = {} if queue.oldest_ready_s is None else waited_document(queue)
    if queue.held_bytes is None:
        return ready
    return {**ready, "heldBytes": queue.held_bytes, "maxBytes": queue.settings.max_bytes}


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
