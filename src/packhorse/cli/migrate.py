# SPDX-License-Identifier: MIT
"""`packhorse migrate`: create or upgrade the store's schema."""

from __future__ import annotations

import click

from packhorse.cli.render import print_json, print_text
from packhorse.cli.target import app_option, json_option, opened, url_option

__all__ = ["migrate"]


@click.command()
@json_option
@url_option
@app_option
def migrate(*, url: str | None, app_name: str | None, as_json: bool) -> None:
    """Create the store's schema, or bring it up to this release's; safe to repeat."""
    with opened(url, app_name) as app:
        schema = app.store.migrate()
        if as_json:
            print_json({"store": app.store.label, "schema": schema})
        else:
            print_text(f"{app.store.label} has schema {schema}")
