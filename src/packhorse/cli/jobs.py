# SPDX-License-Identifier: MIT
"""`packhorse jobs`: list, show, cancel, retry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import click

from packhorse.cli.filters import STATUS, Filters, filter_options, job_filter, page_options
from packhorse.cli.options import json_option, on_store

if TYPE_CHECKING:
    from packhorse.app import Packhorse

__all__ = ["cancel_jobs", "jobs", "list_jobs", "retry_jobs", "show_job"]


@click.group()
def jobs() -> None:
    """List, show, cancel and retry jobs."""


@jobs.command("list")
@click.option(
    "--status",
    multiple=True,
    type=STATUS,
    help="Only jobs in this status; may be given several times.",
)
@filter_options
@page_options
@json_option
@on_store
def list_jobs(
    app: Packhorse,
    *,
    limit: int,
    after: str | None,
    as_json: bool,
    **filters: Unpack[Filters],
) -> None:
    """List jobs, the newest first."""
    from packhorse.cli.showing import print_page

    print_page(app.insights.jobs(job_filter(**filters), limit=limit, after=after), as_json=as_json)


@jobs.command("show")
@click.argument("job_id", metavar="JOB")
@json_option
@on_store
def show_job(app: Packhorse, *, job_id: str, as_json: bool) -> None:
    """Show all there is to know of one job: counters, arguments, result, every attempt."""
    from packhorse.cli.showing import print_job, read_job

    print_job(app, read_job(app, job_id), as_json=as_json)


@jobs.command("cancel")
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)
@json_option
@on_store
def cancel_jobs(app: Packhorse, *, job_ids: tuple[str, ...], as_json: bool) -> None:
    """Cancel jobs: waiting ones at once, running ones as soon as their worker hears of it."""
    from packhorse.cli.answers import tell_answers

    store = app.store
    answers = [
        (job_id, str(store.run(store.jobs.cancel(job_id)))) for job_id in dict.fromkeys(job_ids)
    ]
    tell_answers(answers, as_json=as_json)


@jobs.command("retry")
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)
@json_option
@on_store
def retry_jobs(app: Packhorse, *, job_ids: tuple[str, ...], as_json: bool) -> None:
    """Run finished jobs again with fresh budgets, and waiting ones now."""
    from packhorse.cli.answers import tell_answers

    store, wanted = app.store, tuple(dict.fromkeys(job_ids))
    answers = store.run(store.jobs.redrive(wanted))
    tell_answers(zip(wanted, map(str, answers), strict=True), as_json=as_json)
