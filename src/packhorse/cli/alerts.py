# SPDX-License-Identifier: MIT
"""`packhorse alerts`: list, test and silence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from packhorse.cli.options import json_option, on_store
from packhorse.cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from packhorse.app import Packhorse

__all__ = ["alerts", "list_alerts", "silence_alert", "test_alert"]

_NAME = click.argument("name", metavar="NAME")


@click.group()
def alerts() -> None:
    """List, test and silence alerts."""


@alerts.command("list")
@json_option
@on_store
def list_alerts(app: Packhorse, *, as_json: bool) -> None:
    """List the alerts of an app, and those the store knows."""
    from packhorse.cli.display import document_of

    app.registry.load()  # modules that declare tasks may declare alerts too
    found = app.alerts.all()
    if as_json:
        print_json({"alerts": [document_of(each) for each in found]})
    elif found:
        headers = ("ALERT", "STATE", "VALUE", "CONDITION", "QUEUE", "SINCE", "SILENCED UNTIL")
        print_table(
            headers,
            [
                (
                    *(each.name, each.state, each.value, each.condition, each.queue),
                    *(each.firing_since, each.silenced_until),
                )
                for each in found
            ],
        )
    else:
        note("No alerts. Declare some with app.alert(...), and run a worker.")


@alerts.command("test")
@_NAME
@on_store
def test_alert(app: Packhorse, *, name: str) -> None:
    """Send a test notice to each destination of alert NAME, as jobs."""
    app.registry.load()
    note(f"Submitted a test notice to {app.alerts.test(name)} destination(s).")


@alerts.command("silence")
@_NAME
@click.argument("span", metavar="FOR")
@on_store
def silence_alert(app: Packhorse, *, name: str, span: str) -> None:
    """Tell nothing of alert NAME for so long, such as 2h; 0 ends a silence."""
    app.registry.load()
    app.alerts.silence(name, 0 if span == "0" else span)
    note(f"Alert {name!r} is silent for {span}." if span != "0" else f"Alert {name!r} is told.")
