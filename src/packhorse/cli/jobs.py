# SPDX-License-Identifier: MIT
"""`packhorse jobs`: list, show, logs, cancel, retry, signal, approve, decline, purge."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click

from packhorse.cli.options import (
    NAME,
    confirm_options,
    on_store,
    reset_budget_option,
    show_values_option,
    store_command,
)
from packhorse.cli.output import confirm, decoded_json, print_text, tell_numbers
from packhorse.cli.selection import (
    STATUS,
    Selection,
    cancel_named,
    cancel_selected,
    filter_options,
    job_filter,
    page_options,
    purge_confirmed,
    redrive_all,
    refuse_filters,
    selected,
    tell_answers,
    whole_id,
    whole_ids,
)
from packhorse.core.job import UNFINISHED, JobStatus

if TYPE_CHECKING:
    from packhorse.app import Packhorse

_OVER: Final = (JobStatus.COMPLETED, JobStatus.CANCELLED)
_JOB = click.argument("job_id", metavar="JOB")
_all_option = click.option("--all", "everything", is_flag=True, help="Every such job there is.")


@click.group()
def jobs() -> None:
    """List, show, cancel, retry, signal, approve, decline and purge jobs; show what they logged."""


@store_command(jobs, "list")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=STATUS,
    help="Only jobs in this status; may be given several times.",
)
@filter_options
@page_options
def list_jobs(
    app: Packhorse, /, *, limit: int, after: str | None, as_json: bool, **filters: Any
) -> None:
    """List jobs, the newest first."""
    from packhorse.cli.display import print_page

    print_page(app, job_filter(app.store, **filters), limit, after, as_json=as_json)


@store_command(jobs, "show")
@_JOB
@show_values_option
def show_job(app: Packhorse, *, job_id: str, as_json: bool, show_values: bool) -> None:
    """Show all there is to know of one job: its arguments, result, steps, artifacts, attempts."""
    from packhorse.cli.display import print_job, read_job

    print_job(app, read_job(app, job_id), as_json=as_json, whole=show_values)


@store_command(jobs, "logs")
@_JOB
def job_logs(app: Packhorse, *, job_id: str, as_json: bool) -> None:
    """Show what the handler of a job logged, of each attempt that ended; secrets are masked."""
    from packhorse.cli.display import print_logs

    lines = app.job(whole_id(app.store, job_id)).logs()
    print_logs(lines, as_json=as_json, redact=app.bus.redact)


@store_command(jobs, "cancel")
@click.argument("job_ids", metavar="[JOB]...", nargs=-1)
@_all_option
@filter_options
@confirm_options
def cancel_jobs(
    app: Packhorse,
    /,
    *,
    job_ids: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **filters: Any,
) -> None:
    """Cancel jobs: those named, or all unfinished ones that the options mean.

    Waiting ones end at once, running ones as soon as their worker hears of it. A job whose worker
    is gone ends at once too.
    """
    if job_ids:
        refuse_filters(filters)
        if dry_run:
            raise click.UsageError("--dry-run counts what options mean; leave it out with ids")
        tell_answers(cancel_named(app, whole_ids(app.store, job_ids)), as_json=as_json)
        return
    selection = _selected(app, filters, UNFINISHED, "no unfinished job matches")
    none = {"cancelled": 0, "flagged": 0, "finished": 0}
    if dry_run:
        tell_numbers({"matched": selection.number, **none}, as_json=as_json)
        return
    confirm(f"Cancel {selection}?", yes=yes)
    answers = cancel_selected(app, selection)
    tell_numbers({"matched": selection.number, **none, **answers}, as_json=as_json)


def _selected(
    app: Packhorse, filters: dict[str, Any], statuses: Iterable[JobStatus], none: str
) -> Selection:
    return selected(
        app,
        filters,
        statuses,
        which="say which jobs: --all, or options such as --queue and --older-than",
        none=f"{none}; see them with 'packhorse jobs list'",
    )


@store_command(jobs, "purge")
@_all_option
@filter_options
@confirm_options
def purge_jobs(
    app: Packhorse, /, *, yes: bool, dry_run: bool, as_json: bool, **filters: Any
) -> None:
    """Remove completed and cancelled jobs for good, with results and history, the oldest first.

    Dead letters are removed by 'packhorse dead purge'.
    """
    selection = _selected(app, filters, _OVER, "no completed or cancelled job matches")
    purge_confirmed(app.store, selection, yes=yes, dry_run=dry_run, as_json=as_json)


@store_command(jobs, "retry")
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)
@reset_budget_option
def retry_jobs(
    app: Packhorse, *, job_ids: tuple[str, ...], reset_budget: bool, as_json: bool
) -> None:
    """Run finished jobs again with fresh budgets, and waiting ones now."""
    wanted = whole_ids(app.store, job_ids)
    answers = redrive_all(app.store, wanted, reset_budget=reset_budget)
    tell_answers(zip(wanted, answers, strict=True), as_json=as_json)


@jobs.command("signal")
@_JOB
@click.argument("name")
@click.argument("value", metavar="[JSON]", default="null")
@click.option("--key", type=NAME, help="Sent again with one key, it is one signal.")
@on_store
def signal_job(app: Packhorse, *, job_id: str, name: str, value: str, key: str | None) -> None:
    """Send a job a signal that its handler waits for, or will: 'ctx.wait_for(NAME)' returns JSON.

    A text needs its quotes: packhorse jobs signal 0190 approved '"by ada"'
    """
    decoded, whole = decoded_json(value), whole_id(app.store, job_id)
    app.job(whole).signal(name, decoded, idempotency_key=key)
    print_text(f"Signalled {whole}.")


_by_option = click.option("--by", required=True, help="Who decides; kept with the job.")
_note_option = click.option("--note", default="", help="Why, or with what in mind.")


@jobs.command("approve")
@_JOB
@_by_option
@_note_option
@on_store
def approve_job(app: Packhorse, *, job_id: str, by: str, note: str) -> None:
    """Let a job go on that waits for a person; its handler sees who approved it."""
    job = app.job(whole_id(app.store, job_id))
    _tell_decision("Approved", job.id, waited=job.approve(by=by, note=note))


@jobs.command("decline")
@_JOB
@_by_option
@_note_option
@on_store
def decline_job(app: Packhorse, *, job_id: str, by: str, note: str) -> None:
    """End a job that waits for a person: it becomes a dead letter that says who declined it."""
    job = app.job(whole_id(app.store, job_id))
    _tell_decision("Declined", job.id, waited=job.decline(by=by, note=note))


def _tell_decision(word: str, job_id: str, *, waited: bool) -> None:
    later = "" if waited else " It does not wait for a person yet; this is kept until it does."
    print_text(f"{word} {job_id}.{later}")
