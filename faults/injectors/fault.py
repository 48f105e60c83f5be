# SPDX-License-Identifier: MIT
"""A fault: what was done, when, and how it is undone."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from faults.stores.ground import Ground
from faults.workers import Place, Workers
from packhorse import Packhorse


@dataclass(slots=True)
class Fault:
    """One fault that was injected."""

    kind: str
    note: str = ""
    at_us: int = 0
    until_us: int = 0
    lasts_s: float = 0.0  #: how long until it is undone
    undo: Callable[[], object] | None = None
    away: bool = False  #: the store could not be used meanwhile


@dataclass(slots=True)
class Scene:
    """What there is to disturb."""

    workers: Workers
    ground: Ground
    app: Packhorse  #: straight to the store
    chance: random.Random
    lease_s: float
    producers: list[Place]
    aside: ThreadPoolExecutor  #: for calls of the store, which may take as long as a fault lasts

    def victim(self, *, supervised: bool | None = None) -> Place | None:
        """A worker that works, of the kind wanted if one is."""
        places = [
            place
            for place in self.workers.working()
            if supervised is None or place.supervised is supervised
        ]
        return self.chance.choice(places) if places else None

    def beyond_lease_s(self) -> float:
        """Longer than a lease."""
        return self.lease_s * self.chance.uniform(1.3, 2.0)


class Injector(Protocol):
    """Does one kind of damage."""

    kind: str
    weight: float  #: how often it is chosen, beside the others
    alone: bool  #: it concerns the whole store, so only one such thing happens at a time

    def fits(self, scene: Scene) -> bool:
        """Whether it can be done on this store at all."""
        ...

    def strike(self, scene: Scene) -> Fault | None:
        """Inject the fault; None if no process can be hit just now."""
        ...
