# SPDX-License-Identifier: MIT
"""`packhorse keys`: make keys, and encrypt what is stored with another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from packhorse.cli.exits import ExitCode
from packhorse.cli.options import NAME, store_command
from packhorse.cli.output import note, print_json, print_text, show_progress
from packhorse.core.text import counted
from packhorse.errors import ConfigError

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.client.rotation import Rotation


@click.group()
def keys() -> None:
    """Make keys for encryption, and change to another one."""


@keys.command("generate")
@click.argument("key_id", metavar="[ID]", default="k1", type=NAME)
def generate_key(key_id: str) -> None:
    """Print a new key as ID:BASE64, ready for PACKHORSE_KEYS. It is kept nowhere."""
    from packhorse.client.encryption import Encryption, new_key

    key = new_key()
    Encryption({key_id: key})  # which refuses an id that cannot be used
    print_text(f"{key_id}:{key}")


@store_command(keys, "rotate")
@click.option("--after", type=NAME, metavar="PLACE", help="Go on where an earlier run was stopped.")
def rotate_keys(app: Packhorse, *, after: str | None, as_json: bool) -> None:
    """Encrypt with the active key what older keys have encrypted, while work goes on.

    Start it when every process has the new key. An older key can go when it reports no values any
    more. It may be stopped and run again at any time.
    """
    from packhorse.client.rotation import rotate
    from packhorse.client.sealed_store import SealedStore

    store = app.store
    if not isinstance(store, SealedStore):
        raise ConfigError(
            "there are no keys here; set PACKHORSE_KEYS, or name an app that has some with --app"
        )
    expected = sum(sum(one.by_status.values()) for one in store.run(store.inspection.counts()))

    def progress(done: Rotation, next_page: str | None) -> None:
        nonlocal after
        after = next_page
        looked = done.jobs + done.records
        show_progress(looked, max(expected + done.records, looked))

    try:
        rotated = rotate(store, after=after, progress=progress)
    except KeyboardInterrupt:
        if after is not None:
            note(f"Go on with: packhorse keys rotate --after {after}")
        raise
    _tell(rotated, store.sealer.keys.active, as_json=as_json)
    if rotated.unreadable:
        raise click.exceptions.Exit(ExitCode.FAILED)


def _tell(rotated: Rotation, active: str, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "jobs": rotated.jobs,
                "records": rotated.records,
                "values": rotated.values,
                "active": active,
                "unreadable": rotated.unreadable,
            }
        )
        return
    number = counted(rotated.values, "value")
    looked = f"{counted(rotated.jobs, 'job')} and {counted(rotated.records, 'record')}"
    print_text(f"Looked at {looked}: {number} now encrypted with {active!r}.")
    for key, values in sorted(rotated.unreadable.items()):
        note(
            f"{counted(values, 'value')} cannot be read: key {key!r} is not here, or has other "
            "bytes; they were left as they are"
        )
