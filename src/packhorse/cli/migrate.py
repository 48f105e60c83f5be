# SPDX-License-Identifier: MIT
"""`packhorse migrate`: create or upgrade the store's schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import click

from packhorse.cli.options import app_option, json_option, url_option
from packhorse.cli.output import print_json, print_text
from packhorse.errors import ConfigError

if TYPE_CHECKING:
    from packhorse.stores.protocol import Store


@runtime_checkable
class _Scripted(Protocol):
    """A store whose schema can be created by hand."""

    def migration_sql(self) -> str: ...


@click.command()
@click.option("--sql", "as_sql", is_flag=True, help="Print the statements instead of running them.")
@json_option
@url_option
@app_option
def migrate(*, url: str | None, app_name: str | None, as_json: bool, as_sql: bool) -> None:
    """Create the store's schema, or bring it up to this release's; safe to repeat."""
    from packhorse.cli.discovery import opened

    with opened(url, app_name) as app:
        if as_sql:
            print_text(_script(app.store))
            return
        schema = app.store.migrate()
        for outbox in app.outboxes:
            outbox.create()
        outboxes = [outbox.label for outbox in app.outboxes]
        if as_json:
            made = {"outboxes": outboxes} if outboxes else {}
            print_json({"store": app.store.label, "schema": schema, **made})
        else:
            print_text(f"{app.store.label} has schema {schema}")
            for label in outboxes:
                print_text(f"the outbox is there: {label}")


def _script(store: Store) -> str:
    from packhorse.client.sealed_store import plain_store

    store = plain_store(store)
    if not isinstance(store, _Scripted):
        raise ConfigError(
            f"{store.label} has no schema that is created by hand; run 'packhorse migrate' "
            "without --sql"
        )
    return store.migration_sql().rstrip()
