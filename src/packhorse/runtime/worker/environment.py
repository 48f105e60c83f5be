# SPDX-License-Identifier: MIT
"""What an app gives its worker or consumer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packhorse.alerts import AlertDeclaration
from packhorse.artifacts import PlaceSource
from packhorse.batches.progress import ProgressWatchers
from packhorse.client.registry import Registry
from packhorse.core.clock import Chance, Clock, SystemChance, SystemClock
from packhorse.core.job_logs import LOGS_OFF
from packhorse.core.schedules import ScheduleDeclaration
from packhorse.core.topics import SubscriberDeclaration
from packhorse.events import EventBus
from packhorse.runtime.services.ticker import Traced
from packhorse.runtime.supervisor.link import SupervisorLink
from packhorse.runtime.worker.hooks import Instrument, Lifespan, Middleware
from packhorse.stores.protocol import Store
from packhorse.stores.requests import QueueSettings

if TYPE_CHECKING:
    from packhorse.client.outbox import Outboxes


@dataclass(frozen=True, slots=True)
class Environment:
    """What an app gives its worker or consumer."""

    store: Store
    registry: Registry
    bus: EventBus = field(default_factory=EventBus)
    middlewares: Sequence[Middleware] = ()
    instruments: Sequence[Instrument] = ()
    lifespans: Sequence[Lifespan] = ()
    clock: Clock = field(default_factory=SystemClock)
    chance: Chance = field(default_factory=SystemChance)
    queues: Mapping[str, QueueSettings] = field(default_factory=dict)  #: as declared, by name
    app: object | None = None  #: handed to the lifespan hooks
    origin: str | None = None  #: `module:attribute` by which a process can import the app
    version: str = ""  #: of the release that runs
    declare: Callable[[], None] = lambda: None  #: declares queues, tasks and limits again
    schedules: Sequence[ScheduleDeclaration] = ()  #: as declared
    alerts: Sequence[AlertDeclaration] = ()  #: as declared
    subscribers: Sequence[SubscriberDeclaration] = ()  #: of topics
    log_level: int = LOGS_OFF  #: from which on lines of handlers are kept with their jobs
    places: PlaceSource = field(default_factory=lambda: PlaceSource(lambda: None, chosen=False))
    outboxes: Outboxes | tuple[()] = ()  #: of the app; the worker drains them
    traced: Traced = nullcontext  #: entered around jobs that services store by themselves
    watchers: ProgressWatchers = field(default_factory=ProgressWatchers)  #: of batches
    link: SupervisorLink | None = None  #: to the supervisor of this process, if it has one
