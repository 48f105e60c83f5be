# SPDX-License-Identifier: MIT
"""`packhorse explain`: what keeps a job from running, or jobs from coming in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from packhorse.cli.options import NAME, json_option, on_store
from packhorse.cli.output import one_line, print_json, print_struct, print_text
from packhorse.core.sizes import fill_text

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.insights import QueueInfo


@click.command()
@click.argument("job_id", metavar="[JOB]", required=False)
@click.option("--queue", type=NAME, help="Tell what keeps new jobs out of this queue instead.")
@click.option("--tenant", type=NAME, help="As this tenant sees it: no other job is found or named.")
@json_option
@on_store
def explain(
    app: Packhorse, *, job_id: str | None, queue: str | None, tenant: str | None, as_json: bool
) -> None:
    """Tell why a job is not running, or what it does instead.

    All that holds it back is told, what has to change first first: not due, paused, behind another
    job of its line, a busy key, a rate limit and when it frees, no live worker, or its turn.
    """
    from packhorse.cli.selection import whole_id

    if (job_id is None) is (queue is None):
        raise click.UsageError("give a job, or --queue, and not both")
    if job_id is None:
        _explain_queue(app, queue or "", as_json=as_json)
        return
    job_id = whole_id(app.store, job_id, tenant=tenant)
    view = app if tenant is None else app.tenant(tenant)
    explanation = view.explain(job_id)
    if as_json:
        print_struct(explanation)
        return
    for line in str(explanation).splitlines():
        print_text(one_line(line))


def _explain_queue(app: Packhorse, name: str, *, as_json: bool) -> None:
    """Tell what keeps new jobs out of a queue."""
    from packhorse.cli.exits import NothingMatched

    queue = next((known for known in app.insights.queues() if known.name == name), None)
    if queue is None:
        raise NothingMatched(f"no queue {name!r} is declared or holds a job")
    reasons = list(_hindrances(queue, app.insights.store_bytes()))
    if as_json:
        print_json({"queue": name, "takesJobs": not reasons, "reasons": reasons})
        return
    print_text(f"queue {name} takes {'no ' if reasons else ''}new jobs{':' if reasons else ''}")
    for reason in reasons:
        print_text(f"- {reason}")


def _hindrances(queue: QueueInfo, store: tuple[int, int] | None) -> Iterator[str]:
    settings = queue.settings
    then = {
        "reject": "submits are refused",
        "wait": "submits wait for room",
        "drop": "each submit gives up the least urgent",
    }[settings.on_full]
    if queue.closed:
        yield f"it is closed; open it with 'packhorse queues open {queue.name}'"
    if settings.max_depth is not None and queue.depth >= settings.max_depth:
        yield f"it is full: {queue.depth} wait and max_depth is {settings.max_depth}; {then}"
    if settings.max_bytes is not None and (queue.held_bytes or 0) >= settings.max_bytes:
        yield f"it is full: {fill_text(queue.held_bytes or 0, settings.max_bytes)}; {then}"
    if store is not None and store[0] >= store[1]:
        yield f"the store is full: {fill_text(*store)}; submits to every queue are refused or wait"
