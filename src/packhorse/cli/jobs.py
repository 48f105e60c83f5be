# SPDX-License-Identifier: MIT
"""`packhorse jobs`: list, show, cancel, retry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, Unpack

import click

from packhorse.app import Packhorse
from packhorse.cli.exits import ExitCode
from packhorse.cli.parameters import Filters, filter_options, job_filter, page_options
from packhorse.cli.render import print_json, print_text
from packhorse.cli.showing import print_job, print_page, read_job
from packhorse.cli.target import json_option, on_store
from packhorse.job import JobStatus
from packhorse.lifecycle import CancelAnswer
from packhorse.stores.requests import RedriveAnswer

__all__ = ["cancel_jobs", "jobs", "list_jobs", "retry_jobs", "show_job"]

_MEANING: Final[Mapping[str, str]] = MappingProxyType(
    {
        CancelAnswer.CANCELLED: "cancelled",
        CancelAnswer.FLAGGED: "running; its worker is told to stop it",
        CancelAnswer.FINISHED: "had finished already; nothing was changed",
        RedriveAnswer.REDRIVEN: "will run again",
        RedriveAnswer.REFUSED: "is ready or running already; nothing was changed",
        RedriveAnswer.CONFLICT: "another job has taken its key; nothing was changed",
        "unknown": "not found",
    }
)
_DONE: Final = frozenset({CancelAnswer.CANCELLED, CancelAnswer.FLAGGED, RedriveAnswer.REDRIVEN})


@click.group()
def jobs() -> None:
    """List, show, cancel and retry jobs."""


@jobs.command("list")
@click.option(
    "--status",
    multiple=True,
    type=click.Choice([str(status) for status in JobStatus]),
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
    print_page(app.insights.jobs(job_filter(**filters), limit=limit, after=after), as_json=as_json)


@jobs.command("show")
@click.argument("job_id", metavar="JOB")
@json_option
@on_store
def show_job(app: Packhorse, *, job_id: str, as_json: bool) -> None:
    """Show all there is to know of one job: counters, arguments, result, every attempt."""
    print_job(app, read_job(app, job_id), as_json=as_json)


@jobs.command("cancel")
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)
@json_option
@on_store
def cancel_jobs(app: Packhorse, *, job_ids: tuple[str, ...], as_json: bool) -> None:
    """Cancel jobs: waiting ones at once, running ones as soon as their worker hears of it."""
    store = app.store
    answers = [
        (job_id, str(store.run(store.jobs.cancel(job_id)))) for job_id in dict.fromkeys(job_ids)
    ]
    _tell(answers, as_json=as_json)


@jobs.command("retry")
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)
@json_option
@on_store
def retry_jobs(app: Packhorse, *, job_ids: tuple[str, ...], as_json: bool) -> None:
    """Run finished jobs again with fresh budgets, and waiting ones now."""
    store, wanted = app.store, tuple(dict.fromkeys(job_ids))
    answers = store.run(store.jobs.redrive(wanted))
    _tell(zip(wanted, map(str, answers), strict=True), as_json=as_json)


def _tell(answers: Iterable[tuple[str, str]], *, as_json: bool) -> None:
    """Write what became of each job, and leave with the code that fits the worst."""
    told = list(answers)
    if as_json:
        print_json({"results": [{"id": job_id, "answer": answer} for job_id, answer in told]})
    else:
        for job_id, answer in told:
            print_text(f"{job_id}  {_MEANING[answer]}")
    outcomes = {answer for _, answer in told}
    if "unknown" in outcomes:
        raise click.exceptions.Exit(ExitCode.NOTHING_MATCHED)
    if outcomes - _DONE:
        raise click.exceptions.Exit(ExitCode.FAILED)
