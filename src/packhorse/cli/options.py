# SPDX-License-Identifier: MIT
"""Options that say which store is meant, and in which form the answer is.

Apart from `target`, which opens the store: what a command can be given is asked for by `--help`
too, and that must not wait until apps and stores are imported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click

if TYPE_CHECKING:
    from packhorse.app import Packhorse

__all__ = ["app_option", "json_option", "on_store", "url_option"]

P = ParamSpec("P")
R = TypeVar("R")

url_option = click.option(
    "--url",
    metavar="URL",
    help="The store, such as sqlite:///jobs.db. Default: PACKHORSE_URL, the file that "
    "PACKHORSE_URL_FILE names, or the app's store.",
)
app_option = click.option(
    "--app", "app_name", metavar="APP", help="The app, as module:attribute. Default: PACKHORSE_APP."
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document instead of text."
)


def on_store(command: Callable[Concatenate[Packhorse, P], R]) -> Callable[..., R]:
    """Give a command --url and --app, and hand it an app whose store is there."""

    @url_option
    @app_option
    @functools.wraps(command)
    def chosen(*args: Any, url: str | None, app_name: str | None, **kwargs: Any) -> R:
        from packhorse.cli.target import existing_store, opened

        with opened(url, app_name) as app:
            existing_store(app.store)
            return command(app, *args, **kwargs)

    return chosen
