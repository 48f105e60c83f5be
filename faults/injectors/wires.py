# SPDX-License-Identifier: MIT
"""Connections cut, held up, or cut after the server has written and before it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from faults.injectors.fault import Fault, Injector, Scene
from faults.proxy import Proxy
from faults.workers import Place

#: Requests that are let through before the one whose answer is lost, at most.
_LET_THROUGH: Final = 12


class Wire:
    """Does something to the way of one worker or producer."""

    alone = False

    def __init__(
        self, kind: str, weight: float, act: Callable[[Scene, Place, Proxy], Fault | None]
    ) -> None:
        self.kind = kind
        self.weight = weight
        self._act = act

    def fits(self, scene: Scene) -> bool:
        return any(place.door.proxy is not None for place in scene.workers.places)

    def strike(self, scene: Scene) -> Fault | None:
        calm = [place for place in scene.producers if not place.disturbed]
        sides = [places for places in (scene.workers.working(), calm) if places]
        if not sides:
            return None
        place = scene.chance.choice(scene.chance.choice(sides))  # producers as often as workers
        proxy = place.door.proxy
        fault = None if proxy is None else self._act(scene, place, proxy)
        if fault is not None:
            fault.kind = self.kind
            fault.note = place.name
            place.disturb(fault.lasts_s)
        return fault


def _cut(scene: Scene, place: Place, proxy: Proxy) -> Fault:
    proxy.cut()
    return Fault("")


def _delay(scene: Scene, place: Place, proxy: Proxy) -> Fault:
    proxy.hold()
    return Fault("", lasts_s=scene.lease_s * scene.chance.uniform(0.1, 0.6), undo=proxy.let_go)


def _part(scene: Scene, place: Place, proxy: Proxy) -> Fault:
    proxy.hold()
    return Fault("", lasts_s=scene.beyond_lease_s(), undo=proxy.let_go)


def _lose(scene: Scene, place: Place, proxy: Proxy) -> Fault:
    before = scene.chance.randrange(_LET_THROUGH)

    def doomed(_: bytes) -> bool:
        nonlocal before
        before -= 1
        return before < 0

    proxy.lose_answer_to(doomed)
    return Fault("")


WIRES: Final[tuple[Injector, ...]] = (
    Wire("cut connections", 4, _cut),
    Wire("hold up connections", 3, _delay),
    Wire("cut off beyond the lease", 3, _part),
    Wire("cut after the write, before the answer", 8, _lose),
)
