# SPDX-License-Identifier: MIT
"""Which store a command works on.

In this order: --url, --app, PACKHORSE_URL or PACKHORSE_URL_FILE, and at last the app that can be
found. Only the second and the last import user code.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import click

from packhorse.app import Packhorse
from packhorse.cli.discovery import FoundApp, find_app
from packhorse.cli.exits import AppNotLoaded, StoreMissing
from packhorse.cli.render import note
from packhorse.errors import ConfigError
from packhorse.stores.protocol import Store

__all__ = ["existing_store", "found_app", "opened"]

_URL_VARIABLES: Final = ("PACKHORSE_URL", "PACKHORSE_URL_FILE")


@runtime_checkable
class _Lookable(Protocol):
    """A store that can be looked for without creating it."""

    def is_there(self) -> bool: ...


@contextmanager
def opened(url: str | None, app_name: str | None) -> Iterator[Packhorse]:
    """The app to work with, closed at the end."""
    if url and app_name:
        raise click.UsageError("--url and --app both say which store; give one of them")
    app = _chosen(url, app_name)
    try:
        yield app
    finally:
        app.close()


def _chosen(url: str | None, app_name: str | None) -> Packhorse:
    if url:
        return Packhorse(url)
    if not app_name and any(os.environ.get(name) for name in _URL_VARIABLES):
        return Packhorse()  # reads them itself
    try:
        return found_app(app_name).app
    except AppNotLoaded as error:
        if app_name:
            raise
        raise AppNotLoaded(f"{error}\nOr name the store alone, with --url.") from error


def found_app(app_name: str | None, *, quiet: bool = False) -> FoundApp:
    """The app that is meant; says on stderr which one that is."""
    found = find_app(app_name, folder=Path.cwd(), environment=os.environ)
    if not quiet:
        note(f"Using {found}")
    return found


def existing_store(store: Store) -> None:
    """Refuse a store that cannot hold anything yet; looking must not create a file."""
    if store.label.startswith("memory:"):
        raise ConfigError(
            "memory:// lives inside the process that uses it, so there is nothing to see from "
            "here; use sqlite:///jobs.db"
        )
    if not _is_there(store):
        raise StoreMissing(
            f"there is no store at {store.label} yet; check the path or the schema, or create it: "
            "start a worker, submit a job, or run 'packhorse migrate'"
        )


def _is_there(store: Store) -> bool:
    return not isinstance(store, _Lookable) or store.is_there()
