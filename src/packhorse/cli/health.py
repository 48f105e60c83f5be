# SPDX-License-Identifier: MIT
"""`packhorse health`: for probes; fast, and without any user code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from packhorse.cli.exits import ExitCode, StoreMissing
from packhorse.cli.options import json_option, url_option
from packhorse.cli.render import counted, print_json, print_text

if TYPE_CHECKING:
    from packhorse.app import Packhorse

__all__ = ["health"]


@click.command()
@click.option("--queue", help="Count only workers that serve this queue.")
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
    names, or sqlite:///packhorse.db. Exit code 0 is healthy, 3 no store, 6 too few workers.
    """
    from packhorse.app import Packhorse

    app = Packhorse(url)
    try:
        label = app.store.label
        _refuse_missing(app)
        workers = app.insights.workers()
    finally:
        app.close()
    live = sum(each.live and queue in (None, *each.queues) for each in workers)
    healthy = live >= wanted
    if as_json:
        print_json({"healthy": healthy, "store": label, "liveWorkers": live})
    else:
        found = counted(live, "live worker")
        serving = f" for queue {queue}" if queue else ""
        state = "healthy" if healthy else "unhealthy"
        print_text(f"{state}: {found}{serving}, {wanted} wanted; {label}")
    if not healthy:
        raise click.exceptions.Exit(ExitCode.UNHEALTHY)


def _refuse_missing(app: Packhorse) -> None:
    """Where nobody said which store is meant, creating the one that is asked would not help."""
    from packhorse.app import DEFAULT_URL
    from packhorse.cli.target import existing_store

    try:
        existing_store(app.store)
    except StoreMissing as error:
        if app.url != DEFAULT_URL:
            raise
        raise StoreMissing(
            f"there is no store at {app.store.label}; health looks for no app, and asks this file "
            "unless told otherwise: name the store of your app with --url or PACKHORSE_URL"
        ) from error
