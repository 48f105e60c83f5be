# SPDX-License-Identifier: MIT
"""What an app gives its worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from packhorse.clock import Chance, Clock, SystemChance, SystemClock
from packhorse.events import EventBus
from packhorse.registry import Registry
from packhorse.stores.protocol import Store
from packhorse.stores.requests import QueueSettings
from packhorse.supervisor.link import Link
from packhorse.worker.lifespan import Lifespan
from packhorse.worker.middleware import Middleware

__all__ = ["WorkerParts"]


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What an app gives its worker."""

    store: Store
    registry: Registry
    bus: EventBus = field(default_factory=EventBus)
    middlewares: Sequence[Middleware] = ()
    lifespans: Sequence[Lifespan] = ()
    clock: Clock = field(default_factory=SystemClock)
    chance: Chance = field(default_factory=SystemChance)
    queues: Mapping[str, QueueSettings] = field(default_factory=dict)  #: as declared, by name
    app: object | None = None  #: handed to the lifespan hooks
    origin: str | None = None  #: `module:attribute` by which a process can import the app
    version: str = ""  #: of the release that runs
    link: Link | None = None  #: to the supervisor of this process, if it has one
