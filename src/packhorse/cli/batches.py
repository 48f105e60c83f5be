# SPDX-License-Identifier: MIT
"""`packhorse batches`: list, show, watch, cancel, retry."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from packhorse.cli.options import on_store, store_command, yes_option
from packhorse.cli.output import (
    confirm,
    note,
    print_answer,
    print_fields,
    print_list,
    print_struct,
    print_table,
    print_text,
    the_one,
)
from packhorse.core.durations import span_text
from packhorse.core.text import short_id

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.batches.handle import Batch
    from packhorse.protocol import BatchProgress

_ID = click.argument("batch_id", metavar="BATCH")
_BAR_WIDTH = 30
_FAILURES_SHOWN = 10


@click.group()
def batches() -> None:
    """List, show, watch, cancel and retry batches."""


@store_command(batches, "list")
def list_batches(app: Packhorse, *, as_json: bool) -> None:
    """List every batch that the store holds, the newest first."""
    headers = ("BATCH", "STATUS", "DONE", "PROCESSED", "FAILED", "TOTAL")
    none = "No batches. app.batch(task, items) begins one."
    print_list("batches", app.batches.all(), headers, _row, none=none, as_json=as_json)


def _row(progress: BatchProgress) -> tuple[object, ...]:
    return (
        short_id(progress.batch_id),
        progress.status,
        f"{progress.percentage:.0f} %",
        progress.processed,
        progress.failed,
        progress.total,
    )


@store_command(batches, "show")
@_ID
def show_batch(app: Packhorse, *, batch_id: str, as_json: bool) -> None:
    """Show one batch, and the first items that failed."""
    batch = _found(app, batch_id)
    progress, document = batch.progress(), batch.document()
    failures, callbacks = batch.failures(), document.callback_states.items()
    if as_json:
        from packhorse.client.documents import document_of

        failed = [document_of(each) for each in failures[:_FAILURES_SHOWN]]
        print_struct(progress, callbacks=document.callback_states, failures=failed)
        return
    print_fields(
        [
            ("batch", progress.batch_id),
            ("status", progress.status),
            ("task", document.job.task),
            ("queue", document.job.queue),
            ("tenant", document.job.tenant or None),
            ("items", f"{progress.processed} of {progress.total}, {progress.failed} failed"),
            ("jobs", f"{document.ended} of {document.members} have ended"),
            ("filled", "yes" if document.sealed else f"no, {document.place} items so far"),
            ("cancelled", f"{document.cancelled} jobs told" if document.stopped else None),
            ("callbacks", ", ".join(f"{kind} {state}" for kind, state in callbacks) or None),
        ]
    )
    rows = [(each.index, each.type, each.message, short_id(each.job_id)) for each in failures]
    if rows:
        print_table(("ITEM", "ERROR", "MESSAGE", "JOB"), rows[:_FAILURES_SHOWN])


@batches.command("watch")
@_ID
@on_store
def watch_batch(app: Packhorse, *, batch_id: str) -> None:
    """Show how far a batch is until it has ended: a bar, or lines where it is piped."""
    import asyncio

    asyncio.run(_watch(app, _found(app, batch_id).id))


async def _watch(app: Packhorse, batch_id: str) -> None:
    from packhorse.core.clock import SystemClock

    clock, is_terminal = SystemClock(), sys.stdout.isatty()
    first: tuple[float, int] | None = None
    async for progress in (await app.batches.aget(batch_id)).watch():
        now = clock.monotonic()
        first = first or (now, progress.processed)
        rate = (progress.processed - first[1]) / max(now - first[0], 1e-6)
        line = _line(progress, rate)
        if is_terminal:
            click.echo(f"\r{_bar(progress.percentage)} {line}\x1b[K", nl=False)
        else:
            print_text(line)
    if is_terminal:
        click.echo("")


def _line(progress: BatchProgress, rate: float) -> str:
    """Describe how far a batch is; `rate` is in items per second."""
    text = f"{progress.percentage:5.1f} %  {progress.processed} of {progress.total}"
    if progress.failed:
        text += f", {progress.failed} failed"
    left = progress.total - progress.processed
    if progress.status in {"pending", "running"} and rate > 0 and left:
        return f"{text}, {rate:.0f}/s, {span_text(int(left / rate) * 1_000_000) or '0s'} left"
    return f"{text}, {progress.status}"


def _bar(percentage: float) -> str:
    filled = round(_BAR_WIDTH * percentage / 100)
    return "█" * filled + "░" * (_BAR_WIDTH - filled)


@store_command(batches, "cancel")
@_ID
@yes_option
def cancel_batch(app: Packhorse, *, batch_id: str, yes: bool, as_json: bool) -> None:
    """End a batch: nothing more starts, and what runs is stopped."""
    batch = _found(app, batch_id)
    batch_id = batch.id
    confirm(f"Cancel batch {batch_id}?", yes=yes)
    for step in batch.cancelling():
        if not as_json and not step.is_done:
            note(f"{step.told} of {step.members} jobs told")
    text = f"Batch {batch_id}: {step.told} jobs told, {step.running} of them held by workers."
    if step.ended:
        text = f"Batch {batch_id} had ended before, and stays {batch.progress().status}."
    numbers = {"members": step.members, "told": step.told, "running": step.running}
    numbers["ended"] = step.ended
    print_answer(text, as_json=as_json, batchId=batch_id, **numbers)


@store_command(batches, "retry")
@_ID
def retry_batch(app: Packhorse, *, batch_id: str, as_json: bool) -> None:
    """Run the items of a batch once more that failed, and no others."""
    batch = _found(app, batch_id)
    batch_id, retried = batch.id, batch.retry_failed()
    text = f"Batch {batch_id}: {retried} jobs run again, for the items that failed."
    print_answer(text, as_json=as_json, batchId=batch_id, retried=retried)


def _found(app: Packhorse, part: str) -> Batch[Any]:
    """Find a batch by its id, or by a part that fits one id alone."""
    from packhorse.group_errors import BatchNotFound

    try:
        return app.batches.get(part)
    except BatchNotFound:
        whole = the_one(part, (each.batch_id for each in app.batches.all()))
        if whole == part:
            raise
        return app.batches.get(whole)
