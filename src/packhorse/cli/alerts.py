# SPDX-License-Identifier: MIT
"""`packhorse alerts`: list, add, remove, test and silence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from packhorse.cli.exits import NothingMatched
from packhorse.cli.options import NAME, duration, on_store, store_command
from packhorse.cli.output import note, print_list

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.client.alerts import AlertInfo

_NAME = click.argument("name", metavar="NAME")


@click.group()
def alerts() -> None:
    """List, add, remove, test and silence alerts."""


@store_command(alerts, "list")
def list_alerts(app: Packhorse, *, as_json: bool) -> None:
    """List the alerts of an app, and those the store knows."""
    headers = ("ALERT", "STATE", "VALUE", "CONDITION", "QUEUE", "RULE", "SINCE", "SILENT UNTIL")
    none = "No alerts. Declare some with app.alert(...) or 'packhorse alerts add'; run a worker."
    print_list("alerts", app.alerts.all(), headers, _row, none=none, as_json=as_json)


def _row(alert: AlertInfo) -> tuple[object, ...]:
    moments = (alert.firing_since, alert.silenced_until)
    shown = ["-" if each is None else f"{each:%m-%d %H:%M}Z" for each in moments]
    value = "-" if alert.value is None else f"{alert.value:g}"
    named = (alert.name, alert.state, value, alert.condition or "-", alert.queue or "-")
    return (*named, alert.source or "-", *shown)


@alerts.command("add")
@_NAME
@click.argument("condition", metavar="CONDITION")
@click.option("--queue", type=NAME, help="The queue it is about. Default: all of them.")
@click.option(
    "--to",
    multiple=True,
    type=NAME,
    help="Who is told: a URL, slack:URL or mailto:ADDRESS; may be repeated.",
)
@click.option("--hold", type=duration, default="0", help="How long it must hold before it fires.")
@click.option(
    "--clear-after",
    type=duration,
    default="1m",
    show_default=True,
    help="How long it must not hold before it is over.",
)
@click.option("--repeat", type=duration, help="Tell it again so often while it lasts.")
@click.option(
    "--over", type=duration, default="15m", show_default=True, help="Window of growth and rates."
)
@on_store
def add_alert(
    app: Packhorse, /, *, name: str, condition: str, queue: str | None, **options: Any
) -> None:
    """Write a rule down in the store, or change it; workers go by it within a minute.

    packhorse alerts add 'mail behind' 'oldest_ready > 5m' --queue mail --to https://...
    """
    app.alerts.add(name, condition, queue=queue or "", **options)
    note(f"Alert {name!r} is written down.")


@alerts.command("remove")
@_NAME
@on_store
def remove_alert(app: Packhorse, *, name: str) -> None:
    """Remove a rule that was written down; those of code are removed there."""
    _require(app, name)
    app.alerts.remove(name)
    note(f"Alert {name!r} is removed.")


@alerts.command("test")
@_NAME
@on_store
def test_alert(app: Packhorse, *, name: str) -> None:
    """Send a test notice to each destination of alert NAME, as jobs."""
    _require(app, name)
    note(f"Submitted a test notice to {app.alerts.test(name)} destination(s).")


@alerts.command("silence")
@_NAME
@click.argument("span", metavar="FOR")
@on_store
def silence_alert(app: Packhorse, *, name: str, span: str) -> None:
    """Tell nothing of alert NAME for so long, such as 2h; 0 ends a silence."""
    _require(app, name)
    app.alerts.silence(name, 0 if span == "0" else span)
    note(f"Alert {name!r} is silent for {span}." if span != "0" else f"Alert {name!r} is told.")


def _require(app: Packhorse, name: str) -> None:
    if all(alert.name != name for alert in app.alerts.all()):
        raise NothingMatched(f"there is no alert {name!r}; see 'packhorse alerts list'")
