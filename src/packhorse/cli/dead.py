# SPDX-License-Identifier: MIT
"""`packhorse dead`: list, show, redrive, purge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from packhorse.cli.exits import ExitCode
from packhorse.cli.options import (
    NAME,
    confirm_options,
    reset_budget_option,
    show_values_option,
    store_command,
)
from packhorse.cli.output import confirm, tell_numbers
from packhorse.cli.selection import (
    REASON,
    Selection,
    filter_options,
    job_filter,
    none_redriven,
    page_options,
    purge_confirmed,
    redrive_named,
    redrive_selected,
    refuse_filters,
    selected,
    whole_ids,
)
from packhorse.core.job import JobStatus
from packhorse.errors import JobConflict

if TYPE_CHECKING:
    from packhorse.app import Packhorse

_reason_option = click.option(
    "--reason", "dead_reason", type=REASON, help="Only jobs that died of this."
)
_shelf_option = click.option(
    "--shelf",
    "dead_letter",
    type=NAME,
    help="Only those on this shelf, the dead_letter of their queue.",
)
_all_option = click.option("--all", "everything", is_flag=True, help="Every dead letter there is.")


@click.group()
def dead() -> None:
    """List, show, redrive and purge dead letters: jobs that will not run again by themselves."""


@store_command(dead, "list")
@_reason_option
@_shelf_option
@filter_options
@page_options
def list_dead(
    app: Packhorse, /, *, limit: int, after: str | None, as_json: bool, **filters: Any
) -> None:
    """List dead letters, the newest jobs first."""
    from packhorse.cli.display import print_page

    chosen = job_filter(app.store, statuses=(JobStatus.DEAD,), **filters)
    print_page(app, chosen, limit, after, as_json=as_json, none="No dead letters.")


@store_command(dead, "show")
@click.argument("job_id", metavar="JOB")
@show_values_option
def show_dead(app: Packhorse, *, job_id: str, as_json: bool, show_values: bool) -> None:
    """Show one dead letter: its reason, its error, its arguments, every attempt."""
    from packhorse.cli.display import print_job, read_job

    record = read_job(app, job_id)
    if record.status is not JobStatus.DEAD:
        raise JobConflict(
            f"job {job_id} is {record.status}, not dead; see it with 'packhorse jobs show'",
            job_id=job_id,
        )
    print_job(app, record, as_json=as_json, whole=show_values)


@store_command(dead, "redrive")
@click.argument("job_ids", metavar="[JOB]...", nargs=-1)
@_all_option
@_reason_option
@_shelf_option
@reset_budget_option
@filter_options
@confirm_options
def redrive_dead(
    app: Packhorse,
    /,
    *,
    job_ids: tuple[str, ...],
    reset_budget: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **filters: Any,
) -> None:
    """Run dead letters again with fresh budgets: those named, or all that the options mean."""
    if job_ids:
        refuse_filters(filters)
        named = whole_ids(app.store, job_ids)
        counts = redrive_named(app.store, named, dry_run=dry_run, reset_budget=reset_budget)
        tell_numbers(counts, as_json=as_json)
        _leave(counts)
        return
    selection = _selected(app, filters)
    if dry_run:
        tell_numbers({"matched": selection.number, **none_redriven()}, as_json=as_json)
        return
    confirm(f"Run {selection} again?", yes=yes)
    answers = redrive_selected(app.store, selection, reset_budget=reset_budget)
    tell_numbers({"matched": selection.number, **none_redriven(), **answers}, as_json=as_json)


@store_command(dead, "purge")
@_all_option
@_reason_option
@_shelf_option
@filter_options
@confirm_options
def purge_dead(
    app: Packhorse, /, *, yes: bool, dry_run: bool, as_json: bool, **filters: Any
) -> None:
    """Remove dead letters for good, with their history, the oldest first."""
    selection = _selected(app, filters)
    purge_confirmed(app.store, selection, yes=yes, dry_run=dry_run, as_json=as_json)


def _selected(app: Packhorse, filters: dict[str, Any]) -> Selection:
    return selected(
        app,
        filters,
        (JobStatus.DEAD,),
        noun="dead letter",
        which="say which dead letters: --all, or options such as --queue and --reason",
        none="no dead letter matches; see them with 'packhorse dead list'",
    )


def _leave(counts: Mapping[str, int]) -> None:
    """Exit with the code of the worst answer."""
    if counts["unknown"]:
        raise click.exceptions.Exit(ExitCode.NOTHING_MATCHED)
    if counts["refused"] or counts["conflict"]:
        raise click.exceptions.Exit(ExitCode.FAILED)
