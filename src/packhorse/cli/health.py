# SPDX-License-Identifier: MIT
"""`packhorse health`: a fast probe that imports no user code."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import click

from packhorse.cli.exits import ExitCode, StoreMissing
from packhorse.cli.options import json_option, queue_choices, url_option
from packhorse.cli.output import print_answer
from packhorse.core.text import counted

if TYPE_CHECKING:
    from packhorse.app import Packhorse


@click.command()
@click.option(
    "--queue", help="Count only workers that serve this queue.", shell_complete=queue_choices
)
@click.option(
    "--workers",
    "wanted",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="How many live workers there must be.",
)
@json_option
@url_option
def health(*, queue: str | None, wanted: int, as_json: bool, url: str | None) -> None:
    """Tell whether the store can be reached and workers live.

    Imports no user code: the store is --url, PACKHORSE_URL, the file that PACKHORSE_URL_FILE
    names, or sqlite:///packhorse.db. Exit code 0 is healthy, 3 a store
    that cannot be reached, 5 none there or one of another release, 6 too few workers.
    """
    from packhorse.app import Packhorse

    with closing(Packhorse(url)) as app:
        label = app.store.label
        _refuse_missing(app)
        workers = app.insights.workers()
    if queue is not None:  # a quiet worker lives, but serves no queue
        workers = tuple(each for each in workers if queue in each.queues and not each.quiet)
    live = sum(each.live for each in workers)
    healthy = live >= wanted
    found = counted(live, "live worker")
    serving = f" for queue {queue}" if queue else ""
    state = "healthy" if healthy else "unhealthy"
    text = f"{state}: {found}{serving}, {wanted} wanted; {label}"
    print_answer(text, as_json=as_json, healthy=healthy, store=label, liveWorkers=live)
    if not healthy:
        raise click.exceptions.Exit(ExitCode.UNHEALTHY)


def _refuse_missing(app: Packhorse) -> None:
    """Refuse a missing store; name --url if the default file was asked."""
    from packhorse.cli.discovery import existing_store
    from packhorse.stores.urls import DEFAULT_URL, absolute_url

    try:
        existing_store(app.store)
    except StoreMissing as error:
        if app.url != absolute_url(DEFAULT_URL, app.folder):
            raise
        raise StoreMissing(
            f"there is no store at {app.store.label}; health looks for no app, and asks this file "
            "unless told otherwise: name the store of your app with --url or PACKHORSE_URL"
        ) from error
