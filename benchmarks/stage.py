# SPDX-License-Identifier: MIT
"""What differs from store to store: who takes part, what is measured, what it is held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from benchmarks.bounds import Bound
from benchmarks.contestants import Contestant
from benchmarks.ledger import Ledger
from benchmarks.settings import Settings
from packhorse.stores.protocol import Store

if TYPE_CHECKING:
    from benchmarks.bench import Bench

#: What the figures of a run are held against.
Bounds = Callable[[Settings, Ledger], Sequence[Bound]]


@dataclass(frozen=True, slots=True)
class Entry:
    """One contestant in one way to submit."""

    measure: str
    way: str  #: as the producer calls it
    contestant: Contestant
    label: str


class PeerNote(msgspec.Struct, frozen=True):
    """What the report says about a peer."""

    label: str
    version: str
    settings: str  #: how it is set, and why
    absent: str = ""  #: why it was not measured; empty: it was


@dataclass(frozen=True, slots=True)
class Stage:
    """One store with everything around it, ready to be measured."""

    name: str
    title: str
    ours: Contestant  #: Packhorse as it comes
    with_slots: Callable[[int], Contestant]  #: the same with so many slots
    drains: Sequence[Contestant]
    submits: Sequence[Sequence[Entry]]  #: those who are compared with each other, together
    turns: int  #: of each of them in one round
    waiting: Sequence[Contestant]  #: whose pick-up and idling are looked at
    open_store: Callable[[Path], Store]
    server: Callable[[Path], str]  #: where a folder's database is on the server, if there is one
    rounds: Mapping[str, Callable[[Bench, int], None]]
    once: Mapping[str, Callable[[Bench], None]]
    bounds: Bounds
    charted: Sequence[str]
    method: str  #: what a reader of the figures must know, as a list
    facts: Mapping[str, str]
    peers: Sequence[PeerNote]
    place: Callable[[Path], AbstractContextManager[None]]  #: an empty store for one folder
    after_filling: Callable[[Path], None]  #: what a store wants done before it is drained
