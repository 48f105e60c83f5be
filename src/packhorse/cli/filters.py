# SPDX-License-Identifier: MIT
"""Options that say which jobs are meant, and how many of them are shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, Unpack

import click

from packhorse.job import PAGE_MAX, DeadReason, JobStatus

if TYPE_CHECKING:
    from packhorse.stores.requests import JobFilter

__all__ = ["REASON", "STATUS", "Filters", "filter_options", "job_filter", "page_options"]

F = TypeVar("F", bound=Callable[..., Any])

REASON: Final = click.Choice([str(reason) for reason in DeadReason])
STATUS: Final = click.Choice([str(status) for status in JobStatus])


class Filters(TypedDict, total=False):
    """Which jobs are meant, as options give it."""

    status: tuple[str, ...]
    queue: str | None
    task: str | None
    tag: str | None
    tenant: str | None
    created_by: str | None
    reason: str | None


def job_filter(**filters: Unpack[Filters]) -> JobFilter:
    """The options as stores take them."""
    from packhorse.stores.requests import JobFilter

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
