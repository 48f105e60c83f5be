# SPDX-License-Identifier: MIT
"""`packhorse dead`: list, show, redrive, purge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import click

from packhorse.cli.confirming import confirm, confirm_options
from packhorse.cli.exits import ExitCode, NothingMatched
from packhorse.cli.filters import REASON, Filters, filter_options, job_filter, page_options
from packhorse.cli.options import json_option, on_store
from packhorse.cli.render import print_json, print_text
from packhorse.errors import JobConflict
from packhorse.job import JobStatus

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.cli.selection import Selection

__all__ = ["dead", "list_dead", "purge_dead", "redrive_dead", "show_dead"]

F = TypeVar("F", bound=Callable[..., Any])

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
    from packhorse.cli.showing import print_page

    page = app.insights.dead_letters(job_filter(**filters), limit=limit, after=after)
    print_page(page, as_json=as_json, none="No dead letters.")


@dead.command("show")
@click.argument("job_id", metavar="JOB")
@json_option
@on_store
def show_dead(app: Packhorse, *, job_id: str, as_json: bool) -> None:
    """Show one dead letter: its reason, its error, its arguments, every attempt."""
    from packhorse.cli.showing import print_job, read_job

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
    from packhorse.cli.selection import none_redriven, redrive_named, redrive_selected

    if job_ids:
        _refuse_both(filters)
        counts = redrive_named(app.store, job_ids, dry_run=dry_run)
        _tell(counts, as_json=as_json)
        _leave(counts)
        return
    selection = _selected(app, filters)
    if dry_run:
        _tell({"matched": selection.number, **none_redriven()}, as_json=as_json)
        return
    confirm(f"Run {selection} again?", yes=yes)
    answers = redrive_selected(app.store, selection)
    _tell({"matched": selection.number, **none_redriven(), **answers}, as_json=as_json)


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
    from packhorse.cli.selection import purge_selected

    selection = _selected(app, filters)
    if not dry_run:
        confirm(f"Remove {selection} for good?", yes=yes)
    purged = 0 if dry_run else purge_selected(app.store, selection)
    _tell({"matched": selection.number, "purged": purged}, as_json=as_json)


def _selected(app: Packhorse, filters: dict[str, Any]) -> Selection:
    """The dead letters the options mean; none is an error, and so is saying nothing."""
    from packhorse.cli.selection import select_dead
    from packhorse.stores.requests import JobFilter

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


def _leave(counts: Mapping[str, int]) -> None:
    """With the code that fits the worst."""
    if counts["unknown"]:
        raise click.exceptions.Exit(ExitCode.NOTHING_MATCHED)
    if counts["refused"] or counts["conflict"]:
        raise click.exceptions.Exit(ExitCode.FAILED)


def _tell(numbers: Mapping[str, int], *, as_json: bool) -> None:
    if as_json:
        print_json(dict(numbers))
    else:
        print_text(", ".join(f"{name} {number}" for name, number in numbers.items()))
