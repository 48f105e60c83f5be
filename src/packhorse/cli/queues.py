# SPDX-License-Identifier: MIT
"""`packhorse queues`: list, pause, resume, close, open, set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from packhorse.cli.exits import NothingMatched
from packhorse.cli.options import NAME, queue_choices, store_command
from packhorse.cli.output import (
    ages,
    did_you_mean,
    note,
    print_answer,
    print_json,
    print_table,
    print_text,
)
from packhorse.core.durations import span_text
from packhorse.core.sizes import THE_STORE, fill_text, size_text
from packhorse.core.text import counted

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.core.job import RateRule
    from packhorse.insights import QueueInfo
    from packhorse.stores.requests import QueueSettings

F = TypeVar("F", bound=Callable[..., Any])
_NONE: Final = "none"
_QUEUE: Final = click.argument("queue", metavar="QUEUE", shell_complete=queue_choices)


@click.group()
def queues() -> None:
    """List, pause, resume, close and open queues, and set their limits."""


@store_command(queues, "list")
def list_queues(app: Packhorse, *, as_json: bool) -> None:
    """List every queue declared, set, paused, closed, or holding a job."""
    found = app.insights.queues()
    if as_json:
        from packhorse.client.documents import queue_document

        print_json({"queues": [queue_document(queue) for queue in found]})
    elif found:
        headers = ("QUEUE", "STATE", "WAITING", "READY", "RUNNING", "DONE", "DEAD", "OLDEST")
        rows = with_bytes(map(_row, found), found)
        steps = [queue for queue in found if queue.in_steps]
        print_table((*headers, "LIMITS", "BYTES")[: len(rows[0])], rows)
        for queue in steps:
            waits = "waits" if queue.in_steps == 1 else "wait"
            print_text(
                f"Besides, {counted(queue.in_steps, 'job')} of {queue.name} {waits} for a person, "
                "a signal or the end of a sleep."
            )
        held = app.insights.store_bytes()
        if held is not None:
            print_text(f"The store holds {fill_text(*held)}.")
    else:
        note("No queues.")


def _part_options(command: F) -> F:
    """Add --key and --tenant."""
    command = click.option("--tenant", type=NAME, help="Only the jobs of this tenant.")(command)
    return click.option(
        "--key", type=NAME, help="Only the jobs whose ordering, concurrency or rate key this is."
    )(command)


@store_command(queues, "pause")
@_QUEUE
@_part_options
def pause_queue(app: Packhorse, /, *, queue: str, as_json: bool, **part: Any) -> None:
    """Stop giving out a queue's jobs; those that run go on."""
    _set_state(app, app.pause, queue, "paused", on=True, as_json=as_json, **part)


@store_command(queues, "resume")
@_QUEUE
@_part_options
def resume_queue(app: Packhorse, /, *, queue: str, as_json: bool, **part: Any) -> None:
    """Give out again what pause with the same options stopped."""
    _set_state(app, app.resume, queue, "paused", on=False, as_json=as_json, **part)


@store_command(queues, "close")
@_QUEUE
def close_queue(app: Packhorse, *, queue: str, as_json: bool) -> None:
    """Take no new jobs for a queue; what is there goes on, with its retries."""
    _set_state(app, app.close_queue, queue, "closed", on=True, as_json=as_json)


@store_command(queues, "drain", hidden=True)
@_QUEUE
def drain_queue(app: Packhorse, *, queue: str, as_json: bool) -> None:
    """Do what close does, whose older name this is."""
    note("'queues drain' is called 'queues close', and goes with the next release.")
    _set_state(app, app.close_queue, queue, "closed", on=True, as_json=as_json)


@store_command(queues, "open")
@_QUEUE
def open_queue(app: Packhorse, *, queue: str, as_json: bool) -> None:
    """Take new jobs for a closed queue again."""
    _set_state(app, app.open_queue, queue, "closed", on=False, as_json=as_json)


@store_command(queues, "set")
@_QUEUE
@click.argument("limits", metavar="[NAME=VALUE]...", nargs=-1)
@click.option("--unset", is_flag=True, help="End what was set: the declared limits hold again.")
def set_queue(
    app: Packhorse, *, queue: str, limits: tuple[str, ...], unset: bool, as_json: bool
) -> None:
    """Set limits of a queue for all workers, at once; they beat what is declared.

    What is not named stays as it is; none takes a limit away. The store itself has the empty name,
    and max_bytes.

        packhorse queues set mail concurrency=5 rate_limit=100/60s max_depth=none

        packhorse queues set mail --unset

        packhorse queues set "" max_bytes=2GB
    """
    from packhorse.client.documents import bytes_document, queue_document

    if unset == bool(limits):
        raise click.UsageError("give limits as name=value, or --unset, and not both")
    _refuse_unknown(app, queue)
    chosen: Any = parse_limits(limits)
    changed = app.set_limits(queue, None) if unset else app.set_limits(queue, **chosen)
    if queue == THE_STORE:
        held = app.insights.store_bytes()
        shown = "holds any number of bytes" if held is None else f"holds {fill_text(*held)}"
        text = f"The store {shown}{'' if changed else '; nothing changed'}."
        print_answer(text, as_json=as_json, **bytes_document(held), changed=changed)
        return
    state = _found(app, queue)
    if state is None:  # tasks name it, but it was never used
        raise NothingMatched(f"no limits of queue {queue!r} are set")
    limited = "; ".join(_limits(state)) or "none"
    text = f"Queue {queue}: {'' if changed else 'nothing changed; '}limits are {limited}."
    print_answer(text, as_json=as_json, **queue_document(state), changed=changed)


def _row(queue: QueueInfo) -> tuple[object, ...]:
    from packhorse.core.job import JobStatus

    counts = queue.counts
    return (
        queue.name,
        queue_state(queue),
        queue.depth,
        counts.get(JobStatus.QUEUED, 0),
        counts.get(JobStatus.PROCESSING, 0),
        counts.get(JobStatus.COMPLETED, 0),
        counts.get(JobStatus.DEAD, 0),
        ages(queue.oldest_ready_s_by_priority),
        "; ".join(_limits(queue)) or "-",
    )


def with_bytes(
    rows: Iterable[tuple[object, ...]], found: Sequence[QueueInfo | None]
) -> list[tuple[object, ...]]:
    """Add to each row how full its queue is, if any queue is bounded by bytes."""
    if not any(queue is not None and queue.held_bytes is not None for queue in found):
        return list(rows)
    return [(*row, _bytes(queue)) for row, queue in zip(rows, found, strict=True)]


def _bytes(queue: QueueInfo | None) -> str:
    if queue is None or queue.held_bytes is None or queue.settings.max_bytes is None:
        return "-"
    return fill_text(queue.held_bytes, queue.settings.max_bytes)


def queue_state(queue: QueueInfo) -> str:
    """Say in a word whether a queue gives out and takes jobs."""
    states = [word for word, on in (("paused", queue.paused), ("closed", queue.closed)) if on]
    return ", ".join(states) or "open"


def _limits(queue: QueueInfo) -> Iterator[str]:
    yield from limit_texts(queue.settings)
    if queue.overridden:
        yield "set by hand"
    for what, names in (("key", queue.paused_keys), ("tenant", queue.paused_tenants)):
        yield from (f"{what} {name} paused" for name in names)


def _refuse_unknown(app: Packhorse, queue: str) -> None:
    """Refuse a mistyped name: it must not look like a paused queue."""
    names = sorted({*app.known_queues, *(known.name for known in app.insights.queues())})
    if queue not in (*names, THE_STORE):
        hint = did_you_mean(queue, names, f"known are: {', '.join(names) or 'none'}")
        raise NothingMatched(f"no queue {queue!r} is declared here or holds a job; {hint}")


def _set_state(
    app: Packhorse,
    verb: Callable[..., bool],
    queue: str,
    state: str,
    *,
    on: bool,
    as_json: bool,
    **options: str | None,
) -> None:
    """Begin or end a state of a queue, or of the part of it that options name, and say so."""
    _refuse_unknown(app, queue)
    part = {name: options[name] for name in ("key", "tenant") if options.get(name) is not None}
    of = "".join(f"{name.capitalize()} {value} of queue " for name, value in part.items())
    what, changed = f"{of or 'Queue '}{queue}", verb(queue, **part)
    hindrances = "" if on else " It is ".join(_hindrances(_found(app, queue)))
    if hindrances:
        over = f"is no longer {state}" if changed else f"was not {state}"
        text = f"{what} {over}, but the queue is {hindrances}"
    else:
        now = state if on else "open"
        text = f"{what} is {now}." if changed else f"{what} was {now} already."
    print_answer(text, as_json=as_json, queue=queue, **part, **{state: on}, changed=changed)


def _found(app: Packhorse, queue: str) -> QueueInfo | None:
    return next((known for known in app.insights.queues() if known.name == queue), None)


def _hindrances(queue: QueueInfo | None) -> Iterator[str]:
    """Say what keeps jobs out of a queue or in it, and the command that ends it."""
    if queue is not None and queue.closed:
        yield (f"closed and takes no new jobs; open it with 'packhorse queues open {queue.name}'.")
    if queue is not None and queue.paused:
        yield (f"paused and gives out no jobs; go on with 'packhorse queues resume {queue.name}'.")


def parse_limits(texts: Iterable[str]) -> dict[str, Any]:
    """Read limits written as name=value, by the names `app.set_limits` takes."""
    limits: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise click.UsageError(f"{text!r} is no limit; write it as name=value")
        if name not in _READERS:
            hint = did_you_mean(name, _READERS, f"the limits are {', '.join(_READERS)}")
            raise click.UsageError(f"there is no limit {name!r}; {hint}")
        if name in limits:
            raise click.UsageError(f"{name} is given twice")
        limits[name] = None if value.strip().lower() == _NONE else _read(name, value.strip())
    return limits


def _read(name: str, value: str) -> Any:
    reader, form = _READERS[name]
    try:
        return reader(value)
    except ValueError:
        raise click.UsageError(f"{name} is {value!r}; write {form}, or none") from None


def _rate(text: str) -> str:
    from packhorse.core.options import read_rate

    read_rate(text)
    return text


def _switch(text: str) -> bool:
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]


def _weights(text: str) -> dict[str, float]:
    pairs = [part.rpartition(":") for part in text.split(",")]
    return {tenant.strip(): float(weight) for tenant, _, weight in pairs}


_NUMBER: Final = (int, "a whole number")
_RATE: Final = (_rate, "how many and the window, such as 100/60s or 100/min")

_READERS: Final[Mapping[str, tuple[Callable[[str], Any], str]]] = MappingProxyType(
    {
        "priority": _NUMBER,
        "concurrency": _NUMBER,
        "rate_limit": _RATE,
        "tenant_rate_limit": _RATE,
        "max_depth": _NUMBER,
        "max_bytes": (str, "bytes, such as 500MB or 2GiB"),
        "on_full": (str, "reject, wait or drop"),
        "soft_depth": _NUMBER,
        "fair": (_switch, "true or false"),
        "weights": (_weights, "tenants and shares, such as acme:2,globex:0.5"),
        "ageing": (str, "a span, such as 5m"),
        "on_dead": (str, "release or hold"),
    }
)


def limit_texts(settings: QueueSettings) -> Iterator[str]:
    """Describe each limit of a queue in a few words."""
    if settings.concurrency is not None:
        yield f"{settings.concurrency} at once"
    if settings.rate is not None:
        yield _rate_text(settings.rate)
    if settings.tenant_rate is not None:
        yield f"{_rate_text(settings.tenant_rate)} a tenant"
    if settings.max_depth is not None:
        yield f"{settings.max_depth} waiting ({settings.on_full})"
    if settings.max_bytes is not None:
        yield f"{size_text(settings.max_bytes)} unfinished ({settings.on_full})"
    if settings.soft_depth is not None:
        yield f"filling from {settings.soft_depth}"
    if settings.ageing_us is not None:
        yield f"ageing {span_text(settings.ageing_us)}"
    if settings.weights:
        yield "shares " + ", ".join(f"{name} {share:g}" for name, share in settings.weights.items())
    if settings.on_dead == "hold":
        yield "dead jobs hold their line"


def _rate_text(rule: RateRule) -> str:
    return f"{rule.max} in {span_text(rule.window_us)}"
