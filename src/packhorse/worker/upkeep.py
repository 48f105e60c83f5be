# SPDX-License-Identifier: MIT
"""The loops every worker runs beside its jobs, and what drives them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from packhorse.services.expirer import Expirer
from packhorse.services.parker import Parker
from packhorse.services.promoter import Promoter
from packhorse.services.pruner import Pruner
from packhorse.services.rescuer import Rescuer
from packhorse.services.service import Driver
from packhorse.worker.parts import WorkerParts
from packhorse.worker.shutdown import Shutdown
from packhorse.worker.starvation import Starvation
from packhorse.worker.trouble import StoreHealth

__all__ = ["upkeep"]


def upkeep(
    worker: str,
    parts: WorkerParts,
    shutdown: Shutdown,
    health: StoreHealth,
    starvation: Starvation,
    *,
    renew: Callable[[], None],
) -> list[Coroutine[Any, Any, None]]:
    """One coroutine per loop; `renew` renews the worker's lease at once."""
    store, chance, bus = parts.store, parts.chance, parts.bus
    driver = Driver(
        sleep=shutdown.sleep,
        stopped=lambda: shutdown.begun,
        failed=health.failed,
        worked=health.worked,
        chance=chance,
    )
    services = (
        Rescuer(store, parts.clock, chance, bus, worker, renew=renew),
        Promoter(store, chance),
        Expirer(store, chance),
        Parker(store, chance, bus, worker),
        Pruner(store, chance),
        starvation,
    )
    return [driver.run(service) for service in services]
