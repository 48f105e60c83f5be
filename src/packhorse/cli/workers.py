# SPDX-License-Identifier: MIT
"""`packhorse workers`: list, stacks, quiet, resume."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from packhorse.cli.exits import NothingMatched, exit_code_of
from packhorse.cli.options import duration, on_store, store_command
from packhorse.cli.output import age, note, print_list, print_struct, print_text, the_one
from packhorse.core.clock import SECOND_US, SystemClock, from_datetime
from packhorse.core.durations import microseconds
from packhorse.core.text import short_id
from packhorse.errors import PackhorseError

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.insights import WorkerInfo

F = TypeVar("F", bound=Callable[..., Any])
#: How long to wait for a worker on another machine to obey.
_HEEDED_S: Final = 15.0


@click.group()
def workers() -> None:
    """List workers, and have them stop claiming."""


@store_command(workers, "list")
def list_workers(app: Packhorse, *, as_json: bool) -> None:
    """List the workers the store knows, live ones and those that went without leaving."""
    from packhorse.client.documents import worker_document

    now_us = SystemClock().now_us()

    def row(worker: WorkerInfo) -> tuple[object, ...]:
        return (
            *(short_id(worker.id), worker_state(worker), worker.host, worker.pid),
            f"{worker.running}/{worker.concurrency}",
            age((now_us - from_datetime(worker.started_at)) / SECOND_US),
            age((now_us - from_datetime(worker.renewed_at)) / SECOND_US),
            *(worker.code, worker.queues),
        )

    print_list(
        "workers",
        app.insights.workers(),
        ("WORKER", "STATE", "HOST", "PID", "RUNNING", "UP", "SEEN", "CODE", "QUEUES"),
        row,
        none="No workers.",
        as_json=as_json,
        document=worker_document,
    )


def worker_state(worker: WorkerInfo) -> str:
    """Say in a word whether a worker lives and claims."""
    if not worker.live:
        return "gone"
    return "quiet" if worker.quiet else "live"


@store_command(workers, "stacks")
@click.argument("worker_id", metavar="WORKER")
@click.option("--timeout", type=duration, default="15s", show_default=True, help="Wait so long.")
def show_stacks(app: Packhorse, worker_id: str, *, timeout: str, as_json: bool) -> None:
    """Show what a worker does right now, on whichever machine: the stacks of running handlers."""
    from packhorse.client.worker_signals import ask_stacks

    live = {worker.id: worker for worker in app.insights.workers() if worker.live}
    whole, timeout_s = _whole_id(live, worker_id), microseconds(timeout) / SECOND_US
    found = ask_stacks(app.store, whole, by="packhorse workers stacks", timeout_s=timeout_s)
    if not found.answered:
        raise NothingMatched(f"worker {whole} has not answered within {timeout}; ask again")
    if as_json:
        print_struct(found)
        return
    for one in found.stacks:
        print_text(f"{one.task}  {one.job_id}  {one.kind}, for {one.seconds:.1f} s")
        print_text(one.stack)
    note(f"{len(found.stacks)} handlers run." if not found.more else f"{found.more} more run.")


def _chosen_workers(command: F) -> F:
    """Add the ids of workers, and --all."""
    everyone = click.option(
        "--all", "everyone", is_flag=True, help="All live workers on this machine."
    )
    return click.argument("worker_ids", metavar="[WORKER]...", nargs=-1)(everyone(command))


@workers.command("quiet")
@_chosen_workers
@on_store
def quiet_workers(app: Packhorse, worker_ids: tuple[str, ...], *, everyone: bool) -> None:
    """Have workers claim nothing more; what they run goes on.

    They live on, and claim again after 'packhorse workers resume'. Processes on this machine get
    SIGUSR1; named workers elsewhere are told through the store.
    """
    _signal_all(app, worker_ids, signal.SIGUSR1, everyone=everyone)


@workers.command("resume")
@_chosen_workers
@on_store
def resume_workers(app: Packhorse, worker_ids: tuple[str, ...], *, everyone: bool) -> None:
    """Have workers claim jobs again. Processes on this machine get SIGUSR2."""
    _signal_all(app, worker_ids, signal.SIGUSR2, everyone=everyone)


def _signal_all(app: Packhorse, worker_ids: Sequence[str], number: int, *, everyone: bool) -> None:
    """Signal the chosen workers; the first that cannot be reached decides the exit code."""
    chosen = _chosen(app.insights.workers(), worker_ids, everyone=everyone)
    refused = [error for worker in chosen if (error := _signal(app, worker, number)) is not None]
    for error in refused:
        note(str(error))
    if everyone and len(refused) < len(chosen):  # some were reached, so the others are merely gone
        refused = [error for error in refused if not isinstance(error, NothingMatched)]
    if refused:
        click.get_current_context().exit(exit_code_of(refused[0]))


def _signal(app: Packhorse, worker: WorkerInfo, number: int) -> PackhorseError | None:
    """Signal a worker's process, or tell it through the store; return the error if it is gone."""
    from packhorse.client.worker_signals import WorkerGone, heeds, quiet_put, signal_worker

    try:
        if signal_worker(worker, number):
            note(f"{signal.Signals(number).name} sent to worker {worker.id}, process {worker.pid}")
            return None
    except WorkerGone as error:
        return NothingMatched(str(error))
    order = quiet_put(worker.id, quiet=number == signal.SIGUSR1, by="packhorse workers")
    app.store.run(app.store.records.change((order,)))
    if not heeds(app.store, worker.id, timeout_s=_HEEDED_S):
        return NothingMatched(
            f"worker {worker.id} on {worker.host} has not heard of it within {_HEEDED_S:.0f} s"
        )
    note(f"worker {worker.id} on {worker.host} was told through the store")
    return None


def _chosen(
    known: Sequence[WorkerInfo], worker_ids: Sequence[str], *, everyone: bool
) -> list[WorkerInfo]:
    """Choose workers; refuse unknown ones before any is signalled."""
    if bool(worker_ids) == everyone:
        raise click.UsageError("name workers, or give --all")
    live = {worker.id: worker for worker in known if worker.live}
    here = socket.gethostname()
    worker_ids = [_whole_id(live, worker_id) for worker_id in worker_ids]
    chosen = [
        worker
        for worker in live.values()
        if (everyone and worker.host == here) or worker.id in worker_ids
    ]
    if not chosen:
        raise NothingMatched("no live worker runs on this machine")
    return chosen


def _whole_id(live: Mapping[str, WorkerInfo], part: str) -> str:
    """Complete the beginning or end of a live worker's id."""
    whole = the_one(part, live, least=1)
    if whole not in live:
        raise NothingMatched(f"no live worker is {part}; see 'packhorse workers list'")
    return whole
