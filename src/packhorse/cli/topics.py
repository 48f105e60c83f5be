# SPDX-License-Identifier: MIT
"""`packhorse topics`: list, show, publish."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from packhorse.cli.options import NAME, duration, store_command
from packhorse.cli.output import (
    decoded_json,
    note,
    print_json,
    print_list,
    print_struct,
    print_table,
    print_text,
)
from packhorse.core.text import counted

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.client.topics import TopicInfo

_NAME = click.argument("name", metavar="TOPIC")
#: Written out: `--help` must not import the job types.
_PRIORITIES = ("critical", "high", "normal", "low", "background")


@click.group()
def topics() -> None:
    """List topics, show who gets their events, and publish one."""


@store_command(topics, "list")
def list_topics(app: Packhorse, *, as_json: bool) -> None:
    """List every topic that the store knows subscribers of."""
    none = "No topics. Workers of an app that subscribes to some write that down on start."
    found = app.topics.all()
    print_list("topics", found, ("TOPIC", "SUBSCRIBERS"), _row, none=none, as_json=as_json)


def _row(topic: TopicInfo) -> tuple[object, ...]:
    active = [each.task for each in topic.subscribers if each.state != "retired"]
    return (topic.name, ", ".join(active) or "-")


@store_command(topics, "show")
@_NAME
def show_topic(app: Packhorse, *, name: str, as_json: bool) -> None:
    """Show the subscribers of a topic, those that are retired too."""
    found = app.topics.get(name)
    if as_json:
        print_struct(found)
    elif found.subscribers:
        rows = [
            (each.task, each.queue, each.state, _instant(each.declared_at), _instant(each.seen_at))
            for each in found.subscribers
        ]
        print_table(("SUBSCRIBER", "QUEUE", "STATE", "DECLARED", "LAST SEEN"), rows)
    else:
        note(f"Topic {name} has no subscribers: events published now reach no task.")


@store_command(topics, "publish")
@_NAME
@click.argument("payload", metavar="JSON")
@click.option("--key", "idempotency_key", type=NAME, help="Of one key nothing is there twice.")
@click.option("--tenant", type=NAME, help="The tenant the jobs belong to.")
@click.option("--priority", type=click.Choice(_PRIORITIES), help="What runs first.")
@click.option("--delay", type=duration, help="Run no job sooner than in so long.")
def publish_event(
    app: Packhorse, /, *, name: str, payload: str, as_json: bool, **options: Any
) -> None:
    """Publish an event on TOPIC: one job for each subscriber.

    packhorse topics publish order.paid '{"order": 17}' --key o-17
    """
    jobs = app.topic(name).publish(decoded_json(payload), **options)
    if as_json:
        listed = [{"jobId": job.id, "deduplicated": job.deduplicated} for job in jobs]
        print_json({"topic": name, "jobs": listed})
    elif jobs:
        print_text(f"The event of {name} is {counted(len(jobs), 'job')}:")
        for job in jobs:
            there = " (was there already)" if job.deduplicated else ""
            print_text(f"  {job.id}  {job.info().task}{there}")
    else:
        note(f"Topic {name} has no subscribers: the event reached no task.")


def _instant(moment: datetime) -> str:
    return f"{moment:%m-%d %H:%M}Z"
