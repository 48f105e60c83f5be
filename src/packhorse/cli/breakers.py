# SPDX-License-Identifier: MIT
"""`packhorse breakers`: list and reset the circuit breakers of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from packhorse.cli.exits import NothingMatched
from packhorse.cli.options import on_store, store_command, yes_option
from packhorse.cli.output import confirm, note, print_json, print_table

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.breaker import BreakerInfo


@click.group()
def breakers() -> None:
    """List and reset circuit breakers."""


@store_command(breakers, "list")
def list_breakers(app: Packhorse, *, as_json: bool) -> None:
    """List the breakers that are open, or have counted failures of late."""
    from packhorse.client.documents import document_of

    found = app.insights.breakers()
    if as_json:
        print_json({"breakers": [document_of(one) for one in found]})
    else:
        breaker_rows(found)


def breaker_rows(found: tuple[BreakerInfo, ...]) -> None:
    """Write breakers as a table."""
    print_table(
        ("BREAKER", "TENANT", "STATE", "FAILURES", "OPENED", "RETRY"),
        [
            (
                *(one.name, one.tenant, "probing" if one.probing else one.state.value),
                *(one.failures, one.opened_at, one.retry_at),
            )
            for one in found
        ],
    )


@breakers.command("reset")
@click.argument("name")
@click.option("--tenant", default="", help="Whose breaker it is, where it belongs to a tenant.")
@yes_option
@on_store
def reset_breaker(app: Packhorse, *, name: str, tenant: str, yes: bool) -> None:
    """Close a breaker and forget its failures; workers go by it within a second.

    Jobs that wait because of it run when they are due: 'packhorse jobs retry' hurries them.
    """
    from packhorse.breaker import BREAKER_KIND
    from packhorse.core.policies.records import RecordId, Remove

    named = RecordId(BREAKER_KIND, tenant, name)
    store = app.store
    if store.run(store.records.record(named)) is None:
        raise NothingMatched(
            f"no breaker {name!r} is open or has failures; see 'packhorse breakers list'"
        )
    confirm(f"Close breaker {name!r} for all workers of {store.label}?", yes=yes)
    store.run(store.records.change([Remove(named)]))
    note(f"Breaker {name!r} is closed.")
