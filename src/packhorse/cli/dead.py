# SPDX-License-Identifier: MIT
"""`packhorse dead`: list, show, redrive, purge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar, Unpack

import click

from packhorse.app import Packhorse
from packhorse.cli.confirming import confirm, confirm_options
from packhorse.cli.exits import ExitCode, NothingMatched
from packhorse.cli.parameters import REASON, Filters, filter_options, job_filter, page_options
from packhorse.cli.render import note, print_json, print_text
from packhorse.cli.selection import Selection, redrive_selected, select_dead
from packhorse.cli.showing import print_job, print_page, read_job
from packhorse.cli.target import json_option, on_store
from packhorse.errors import JobConflict
from packhorse.job import JobStatus
from packhorse.stores.requests import JobFilter, RedriveAnswer

__all__ = ["dead", "list_dead", "purge_dead", "redrive_dead", "show_dead"]

F = TypeVar("F", bound=Callable[..., Any])

#: Jobs removed in one transaction, so that workers get their turn in between.
_PURGE_BATCH: Final = 1_000

_reason_option = click.option("--reason", type=REASON, help="Only jobs that died of this.")
_all_option = click.option("--all", "everything", is_flag=True, help="Every dead letter there is.")


@click.group()
def dead() -> None:
    """List, show, redrive and purge dead letters: jobs that will not run again by themselves."""


@dead.command("list")
@_reason_option
@filter_options
@page_options
@json_option
@on_store
def list_dead(
    app: Packhorse,
    *,
    limit: int,
    after: str | None,
    as_json: bool,
    **filters: Unpack[Filters],
) -> None:
    """List dead letters, the newest jobs first."""
    page = app.insights.dead_letters(job_filter(**filters), limit=limit, after=after)
    print_page(page, as_json=as_json, none="No dead letters.")


@dead.command("show")
@click.argument("job_id", metavar="JOB")
@json_option
@on_store
def show_dead(app: Packhorse, *, job_id: str, as_json: bool) -> None:
    """Show one dead letter: its reason, its error, its arguments, every attempt."""
    record = read_job(app, job_id)
    if record.status is not JobStatus.DEAD:
        raise JobConflict(
            f"job {job_id} is {record.status}, not dead; see it with 'packhorse jobs show'",
            job_id=job_id,
        )
    print_job(app, record, as_json=as_json)


@dead.command("redrive")
@click.argument("job_ids", metavar="[JOB]...", nargs=-1)
@_all_option
@_reason_option
@filter_options
@confirm_options
@json_option
@on_store
def redrive_dead(
    app: Packhorse,
    /,
    *,
    job_ids: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **filters: Any,
) -> None:
    """Run dead letters again with fresh budgets: those named, or all that the options mean."""
    if job_ids:
        _refuse_both(filters)
        _redrive_named(app, job_ids, dry_run=dry_run, as_json=as_json)
        return
    selection = _selected(app, filters)
    if dry_run:
        _tell({"matched": selection.number, **_counted(Counter())}, as_json=as_json)
        return
    confirm(f"Run {selection} again?", yes=yes)
    answers = redrive_selected(app.store, selection)
    _tell({"matched": selection.number, **_counted(answers)}, as_json=as_json)


@dead.command("purge")
@_all_option
@_reason_option
@filter_options
@confirm_options
@json_option
@on_store
def purge_dead(
    app: Packhorse, /, *, yes: bool, dry_run: bool, as_json: bool, **filters: Any
) -> None:
    """Remove dead letters for good, with their history, the oldest first."""
    selection = _selected(app, filters)
    if not dry_run:
        confirm(f"Remove {selection} for good?", yes=yes)
    purged = 0 if dry_run else _purged(app, selection)
    _tell({"matched": selection.number, "purged": purged}, as_json=as_json)


def _selected(app: Packhorse, filters: dict[str, Any]) -> Selection:
    """The dead letters the options mean; none is an error, and so is saying nothing."""
    everything = filters.pop("everything")
    chosen = job_filter(**filters)
    if everything == (chosen != JobFilter()):
        raise click.UsageError(
            "say which dead letters: --all, or options such as --queue and --reason"
        )
    selection = select_dead(app.store, chosen)
    if not selection.number:
        raise NothingMatched("no dead letter matches; see them with 'packhorse dead list'")
    return selection


def _refuse_both(filters: dict[str, Any]) -> None:
    if any(filters.values()):
        raise click.UsageError("give jobs by id, or options that choose them, not both")


def _redrive_named(app: Packhorse, job_ids: Iterable[str], *, dry_run: bool, as_json: bool) -> None:
    store, dead_ids = app.store, []
    counts: Counter[str] = Counter()
    for job_id in dict.fromkeys(job_ids):
        record = store.run(store.inspection.job(job_id))
        if record is None:
            counts["unknown"] += 1
            note(f"{job_id}  not found")
        elif record.status is not JobStatus.DEAD:
            # Running a completed job again is a decision of its own.
            counts["refused"] += 1
            note(f"{job_id}  is {record.status}, not dead; see 'packhorse jobs retry'")
        else:
            dead_ids.append(job_id)
    if not dry_run:
        counts.update(str(answer) for answer in store.run(store.jobs.redrive(dead_ids)))
    _tell({"matched": len(dead_ids), **_counted(counts)}, as_json=as_json)
    if counts["unknown"]:
        raise click.exceptions.Exit(ExitCode.NOTHING_MATCHED)
    if counts["refused"] or counts["conflict"]:
        raise click.exceptions.Exit(ExitCode.FAILED)


def _counted(counts: Counter[str]) -> dict[str, int]:
    return {str(answer): counts[answer] for answer in RedriveAnswer}


def _purged(app: Packhorse, selection: Selection) -> int:
    """Remove no more than were announced, even if more have died since."""
    store, left = app.store, selection.number
    while left:
        batch = min(left, _PURGE_BATCH)
        removed = store.run(store.jobs.delete(selection.chosen, limit=batch))
        left -= removed
        if removed < batch:
            break
    return selection.number - left


def _tell(numbers: dict[str, int], *, as_json: bool) -> None:
    if as_json:
        print_json(numbers)
    else:
        print_text(", ".join(f"{name} {number}" for name, number in numbers.items()))
