# SPDX-License-Identifier: MIT
"""Where the processes of a supervisor sit, and what outlives each of them."""

from __future__ import annotations

from dataclasses import dataclass

from packhorse.supervisor.process import ChildProcess

__all__ = ["Seat"]


@dataclass(slots=True, eq=False)
class Seat:
    """A place for one process, and who had it before."""

    number: int
    child: ChildProcess | None = None
    start_at: float = 0.0
    quick_deaths: int = 0
    restarts: int = 0
    closed: bool = False  #: its process had nothing left to do
    quiet: bool = False  #: its process claims nothing, and whoever follows is not to either
