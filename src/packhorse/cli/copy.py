# SPDX-License-Identifier: MIT
"""`packhorse copy`: carry what waits and what is dead from one store to another."""

from __future__ import annotations

from typing import Any, Final

import click

from packhorse.cli.confirming import confirm_options
from packhorse.cli.options import json_option

__all__ = ["copy"]

_BATCH: Final = 500
_BATCH_MAX: Final = 10_000


@click.command()
@click.option("--from", "source_url", required=True, metavar="URL", help="The store to read.")
@click.option("--to", "target_url", required=True, metavar="URL", help="The store to fill.")
@click.option("--queue", "-q", "queues", multiple=True, help="Only this queue; may be repeated.")
@click.option(
    "--batch",
    type=click.IntRange(1, _BATCH_MAX),
    default=_BATCH,
    show_default=True,
    help="Jobs carried in one transaction.",
)
@click.option("--force", is_flag=True, help="Copy although workers of the source are at work.")
@confirm_options
@json_option
def copy(source_url: str, target_url: str, *, dry_run: bool, yes: bool, **options: Any) -> None:
    """Carry waiting, scheduled, retrying and dead jobs to another store, and compare both.

    Jobs keep their ids, counters, keys and order. The source is left as it is. What is in the
    target already is passed over, so a copy that was interrupted goes on when it is run again.
    """
    from packhorse.cli.journey import carry

    carry(source_url, target_url, dry_run=dry_run, yes=yes, **options)
