# SPDX-License-Identifier: MIT
"""What a store of the rig can be made to suffer."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from faults.clocks import ClockFile
from faults.proxy import Proxy


class Door:
    """The connection of one worker or producer to the store, and the clock of that process."""

    def __init__(self, url: str, clock: ClockFile, proxy: Proxy | None = None) -> None:
        self.url = url
        self.clock = clock
        self.proxy = proxy  #: None: a file, to which no wire leads


class Ground(Protocol):
    """A store, and how to disturb it."""

    name: str
    url: str  #: straight to the store, for the rig itself
    can_restart: bool
    can_step: bool

    @property
    def clock(self) -> ClockFile | None:
        """Of the rig's own app, where processes' clocks are the store's."""
        ...

    def door(self, name: str) -> Door:
        """A new way to the store."""
        ...

    def restart(self) -> None:
        """Let it crash, and start it again."""
        ...

    def pause(self) -> bool:
        """Make the store answer no one until `resume`; False if that is impossible just now."""
        ...

    def resume(self) -> None:
        """Let it go on."""
        ...

    def step(self, offset_us: int) -> None:
        """Set its clock to the machine's and so much."""
        ...

    def facts(self) -> dict[str, str]:
        """What it is, and how it is set."""
        ...

    def close(self) -> None:
        """End it."""
        ...


def door_folder(folder: Path) -> Path:
    """Where clocks are kept."""
    path = folder / "clocks"
    path.mkdir(parents=True, exist_ok=True)
    return path
