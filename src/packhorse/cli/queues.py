# SPDX-License-Identifier: MIT
"""`packhorse queues`: list, pause, resume, drain, open, set."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from packhorse.app import Packhorse
from packhorse.cli.documents import queue_document
from packhorse.cli.exits import NothingMatched
from packhorse.cli.limits import limit_texts, parse_limits
from packhorse.cli.render import ages, note, print_json, print_table, print_text
from packhorse.cli.target import json_option, on_store
from packhorse.insights import QueueInfo
from packhorse.job import JobStatus

__all__ = [
    "drain_queue",
    "list_queues",
    "open_queue",
    "pause_queue",
    "queues",
    "resume_queue",
    "set_queue",
]

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def queues() -> None:
    """List, pause, resume, drain and open queues, and set their limits."""


@queues.command("list")
@json_option
@on_store
def list_queues(app: Packhorse, *, as_json: bool) -> None:
    """List every queue declared, set, paused, closed, or holding a job."""
    found = app.insights.queues()
    if as_json:
        print_json({"queues": [queue_document(queue) for queue in found]})
    elif found:
        headers = ("QUEUE", "STATE", "WAITING", "READY", "RUNNING", "DONE", "DEAD", "OLDEST")
        print_table((*headers, "LIMITS"), map(_row, found))
    else:
        note("No queues.")


def _part_options(command: F) -> F:
    """--key and --tenant."""
    command = click.option("--tenant", help="Only the jobs of this tenant.")(command)
    return click.option(
        "--key", help="Only the jobs whose ordering, concurrency or rate key this is."
    )(command)


@queues.command("pause")
@click.argument("queue", metavar="QUEUE")
@_part_options
@json_option
@on_store
def pause_queue(
    app: Packhorse, *, queue: str, key: str | None, tenant: str | None, as_json: bool
) -> None:
    """Stop giving out a queue's jobs; those that run go on."""
    _refuse_unknown(app, queue)
    changed = app.pause(queue, key=key, tenant=tenant)
    _tell_paused(queue, key, tenant, paused=True, changed=changed, as_json=as_json)


@queues.command("resume")
@click.argument("queue", metavar="QUEUE")
@_part_options
@json_option
@on_store
def resume_queue(
    app: Packhorse, *, queue: str, key: str | None, tenant: str | None, as_json: bool
) -> None:
    """Give out again what pause with the same options stopped."""
    _refuse_unknown(app, queue)
    changed = app.resume(queue, key=key, tenant=tenant)
    _tell_paused(queue, key, tenant, paused=False, changed=changed, as_json=as_json)


@queues.command("drain")
@click.argument("queue", metavar="QUEUE")
@json_option
@on_store
def drain_queue(app: Packhorse, *, queue: str, as_json: bool) -> None:
    """Take no new jobs for a queue; what is there goes on, with its retries."""
    _refuse_unknown(app, queue)
    _tell_closed(queue, closed=True, changed=app.drain(queue), as_json=as_json)


@queues.command("open")
@click.argument("queue", metavar="QUEUE")
@json_option
@on_store
def open_queue(app: Packhorse, *, queue: str, as_json: bool) -> None:
    """Take new jobs for a drained queue again."""
    _refuse_unknown(app, queue)
    _tell_closed(queue, closed=False, changed=app.open(queue), as_json=as_json)


@queues.command("set")
@click.argument("queue", metavar="QUEUE")
@click.argument("limits", metavar="[NAME=VALUE]...", nargs=-1)
@click.option("--unset", is_flag=True, help="End what was set: the declared limits hold again.")
@json_option
@on_store
def set_queue(
    app: Packhorse, *, queue: str, limits: tuple[str, ...], unset: bool, as_json: bool
) -> None:
    """Set limits of a queue for all workers, at once; they beat what is declared.

    What is not named stays as it is; none takes a limit away.

        packhorse queues set mail concurrency=5 rate_limit=100/60s max_depth=none

        packhorse queues set mail --unset
    """
    if unset == bool(limits):
        raise click.UsageError("give limits as name=value, or --unset, and not both")
    _refuse_unknown(app, queue)
    chosen: Any = parse_limits(limits)
    changed = app.set_limits(queue, None) if unset else app.set_limits(queue, **chosen)
    state = next(known for known in app.insights.queues() if known.name == queue)
    if as_json:
        print_json({**queue_document(state), "changed": changed})
        return
    shown = "; ".join(_limits(state)) or "none"
    print_text(f"Queue {queue}: {'' if changed else 'nothing changed; '}limits are {shown}.")


def _row(queue: QueueInfo) -> tuple[object, ...]:
    counts = queue.counts
    return (
        queue.name,
        _state(queue),
        queue.depth,
        counts.get(JobStatus.QUEUED, 0),
        counts.get(JobStatus.PROCESSING, 0),
        counts.get(JobStatus.COMPLETED, 0),
        counts.get(JobStatus.DEAD, 0),
        ages(queue.oldest_ready_s_by_priority),
        "; ".join(_limits(queue)) or "-",
    )


def _state(queue: QueueInfo) -> str:
    states = [word for word, on in (("paused", queue.paused), ("closed", queue.closed)) if on]
    return ", ".join(states) or "open"


def _limits(queue: QueueInfo) -> Iterator[str]:
    yield from limit_texts(queue.settings)
    if queue.overridden:
        yield "set by hand"
    for what, names in (("key", queue.paused_keys), ("tenant", queue.paused_tenants)):
        yield from (f"{what} {name} paused" for name in names)


def _refuse_unknown(app: Packhorse, queue: str) -> None:
    """A mistyped name must not look like a paused queue."""
    names = [known.name for known in app.insights.queues()]
    if queue not in names:
        near = difflib.get_close_matches(queue, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(names) or 'none'}"
        raise NothingMatched(f"no queue {queue!r} is declared here or holds a job; {hint}")


def _tell_paused(
    queue: str,
    key: str | None,
    tenant: str | None,
    *,
    paused: bool,
    changed: bool,
    as_json: bool,
) -> None:
    part = {name: value for name, value in (("key", key), ("tenant", tenant)) if value is not None}
    if as_json:
        print_json({"queue": queue, **part, "paused": paused, "changed": changed})
        return
    of = "".join(f"{name.capitalize()} {value} of queue " for name, value in part.items())
    _say(f"{of or 'Queue '}{queue}", "paused" if paused else "open", changed=changed)


def _tell_closed(queue: str, *, closed: bool, changed: bool, as_json: bool) -> None:
    if as_json:
        print_json({"queue": queue, "closed": closed, "changed": changed})
        return
    _say(f"Queue {queue}", "closed" if closed else "open", changed=changed)


def _say(what: str, state: str, *, changed: bool) -> None:
    print_text(f"{what} is {state}." if changed else f"{what} was {state} already.")
