# SPDX-License-Identifier: MIT
"""Kinds of values on the command line, and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypedDict, TypeVar, Unpack

import click

from packhorse.durations import microseconds
from packhorse.errors import ConfigError
from packhorse.insights import PAGE_MAX
from packhorse.job import DeadReason, JobStatus
from packhorse.stores.requests import JobFilter

__all__ = [
    "REASON",
    "Filters",
    "duration",
    "filter_options",
    "job_filter",
    "page_options",
    "queue_names",
]

F = TypeVar("F", bound=Callable[..., Any])

REASON: Final = click.Choice([str(reason) for reason in DeadReason])


class Filters(TypedDict, total=False):
    """Which jobs are meant, as options give it."""

    status: tuple[str, ...]
    queue: str | None
    task: str | None
    tag: str | None
    tenant: str | None
    created_by: str | None
    reason: str | None


def duration(text: str) -> str:
    """A span such as `30`, `30s` or `1h30m`; handed on as it was written."""
    try:
        microseconds(text)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    return text


def queue_names(text: str) -> tuple[str, ...]:
    """Names of queues with commas between them."""
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise click.BadParameter("a name is missing beside a comma")
    for name in names:
        bare, colon, cap = name.rpartition(":")
        if colon and cap.isdecimal():
            raise click.BadParameter(
                f"a cap per worker, as in {name!r}, is not supported by this release; write "
                f"{bare!r}, and limit the whole worker with --concurrency"
            )
    return names


def job_filter(**filters: Unpack[Filters]) -> JobFilter:
    """The options as stores take them."""
    return JobFilter(
        statuses=tuple(JobStatus(status) for status in filters.get("status", ())),
        queue=filters.get("queue"),
        task=filters.get("task"),
        tag=filters.get("tag"),
        tenant=filters.get("tenant"),
        created_by=filters.get("created_by"),
        dead_reason=filters.get("reason"),
    )


def filter_options(command: F) -> F:
    """--queue, --task, --tag, --tenant and --created-by."""
    for name, meaning in (
        ("--created-by", "Only jobs submitted by this."),
        ("--tenant", "Only jobs of this tenant."),
        ("--tag", "Only jobs with this tag."),
        ("--task", "Only jobs of this task."),
        ("--queue", "Only jobs of this queue."),
    ):
        command = click.option(name, help=meaning)(command)
    return command


def page_options(command: F) -> F:
    """--limit and --after."""
    after = click.option("--after", metavar="PLACE", help="Go on where the page before ended.")
    limit = click.option(
        "--limit",
        type=click.IntRange(1, PAGE_MAX),
        default=50,
        show_default=True,
        help="At most so many.",
    )
    return limit(after(command))
