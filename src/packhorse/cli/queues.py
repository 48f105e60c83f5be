# SPDX-License-Identifier: MIT
"""`packhorse queues`: list, pause, resume, drain, open, set."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from packhorse.cli.exits import NothingMatched
from packhorse.cli.limits import limit_texts, parse_limits
from packhorse.cli.options import json_option, on_store
from packhorse.cli.render import ages, note, print_json, print_table, print_text

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.insights import QueueInfo

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
        from packhorse.cli.documents import queue_document

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
    part = _part(key, tenant)
    if as_json:
        print_json({"queue": queue, **part, "paused": True, "changed": changed})
    else:
        print_text(f"{_named(queue, part)} {'is paused' if changed else 'was paused already'}.")


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
    part = _part(key, tenant)
    if as_json:
        print_json({"queue": queue, **part, "paused": False, "changed": changed})
    else:
        _tell_open(app, queue, _named(queue, part), "paused", changed=changed)


@queues.command("drain")
@click.argument("queue", metavar="QUEUE")
@json_option
@on_store
def drain_queue(app: Packhorse, *, queue: str, as_json: bool) -> None:
    """Take no new jobs for a queue; what is there goes on, with its retries."""
    _refuse_unknown(app, queue)
    changed = app.drain(queue)
    if as_json:
        print_json({"queue": queue, "closed": True, "changed": changed})
    else:
        print_text(f"Queue {queue} {'is closed' if changed else 'was closed already'}.")


@queues.command("open")
@click.argument("queue", metavar="QUEUE")
@json_option
@on_store
def open_queue(app: Packhorse, *, queue: str, as_json: bool) -> None:
    """Take new jobs for a drained queue again."""
    _refuse_unknown(app, queue)
    changed = app.open(queue)
    if as_json:
        print_json({"queue": queue, "closed": False, "changed": changed})
    else:
        _tell_open(app, queue, f"Queue {queue}", "closed", changed=changed)


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
    state = _found(app, queue)
    if state is None:  # of a queue that tasks name, and nobody ever used
        raise NothingMatched(f"no limits of queue {queue!r} are set")
    if as_json:
        from packhorse.cli.documents import queue_document

        print_json({**queue_document(state), "changed": changed})
        return
    shown = "; ".join(_limits(state)) or "none"
    print_text(f"Queue {queue}: {'' if changed else 'nothing changed; '}limits are {shown}.")


def _row(queue: QueueInfo) -> tuple[object, ...]:
    from packhorse.job import JobStatus

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
    """A mistyped name must not look like a paused queue.

    What the app declares or its tasks name is known also before the store has heard of it.
    """
    names = sorted({*app.known_queues, *(known.name for known in app.insights.queues())})
    if queue not in names:
        near = difflib.get_close_matches(queue, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(names) or 'none'}"
        raise NothingMatched(f"no queue {queue!r} is declared here or holds a job; {hint}")


def _part(key: str | None, tenant: str | None) -> dict[str, str]:
    """What is meant of a queue, if not all of it."""
    return {name: value for name, value in (("key", key), ("tenant", tenant)) if value is not None}


def _named(queue: str, part: Mapping[str, str]) -> str:
    of = "".join(f"{name.capitalize()} {value} of queue " for name, value in part.items())
    return f"{of or 'Queue '}{queue}"


def _tell_open(app: Packhorse, queue: str, what: str, held: str, *, changed: bool) -> None:
    """Say that `what` is not held any more; "open" only if nothing else holds the queue."""
    hindrances = " It is ".join(_hindrances(_found(app, queue)))
    if hindrances:
        over = f"is no longer {held}" if changed else f"was not {held}"
        print_text(f"{what} {over}, but the queue is {hindrances}")
    else:
        print_text(f"{what} is open." if changed else f"{what} was open already.")


def _found(app: Packhorse, queue: str) -> QueueInfo | None:
    return next((known for known in app.insights.queues() if known.name == queue), None)


def _hindrances(queue: QueueInfo | None) -> Iterator[str]:
    """Why jobs do not come into a queue or out of it, and the command that ends it."""
    if queue is not None and queue.closed:
        yield (f"closed and takes no new jobs; open it with 'packhorse queues open {queue.name}'.")
    if queue is not None and queue.paused:
        yield (f"paused and gives out no jobs; go on with 'packhorse queues resume {queue.name}'.")
