# SPDX-License-Identifier: MIT
"""Processes killed at once, or stopped for longer than their lease."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Final

from faults.injectors.fault import Fault, Injector, Scene
from faults.processes import send
from faults.workers import Place

#: Which processes of a place get the signal.
Aim = Callable[[Scene, Place], list[int]]


def _first(scene: Scene, place: Place) -> list[int]:
    return [place.pid]


def _everybody(scene: Scene, place: Place) -> list[int]:
    return place.tree()


def _one_child(scene: Scene, place: Place) -> list[int]:
    children = place.children()
    return [scene.chance.choice(children)] if children else []


def _one_grandchild(scene: Scene, place: Place) -> list[int]:
    below = place.grandchildren()
    return [scene.chance.choice(below)] if below else []


class _Signal:
    """What is sent to some processes of one place."""

    alone = False

    def __init__(self, kind: str, weight: float, aim: Aim, *, supervised: bool) -> None:
        self.kind = kind
        self.weight = weight
        self._aim = aim
        self._supervised = supervised

    def fits(self, scene: Scene) -> bool:
        return any(place.supervised is self._supervised for place in scene.workers.places)

    def strike(self, scene: Scene) -> Fault | None:
        place = scene.victim(supervised=self._supervised)
        pids = self._aim(scene, place) if place is not None else []
        return self._send(scene, place, pids) if place is not None and pids else None

    def _send(self, scene: Scene, place: Place, pids: list[int]) -> Fault:
        raise NotImplementedError


class Kill(_Signal):
    """SIGKILL."""

    def _send(self, scene: Scene, place: Place, pids: list[int]) -> Fault:
        send(pids, signal.SIGKILL)
        return Fault(self.kind, f"{place.name}: {pids}")


class Stop(_Signal):
    """SIGSTOP, and SIGCONT when the lease is over."""

    def _send(self, scene: Scene, place: Place, pids: list[int]) -> Fault:
        send(pids, signal.SIGSTOP)
        lasts_s = scene.beyond_lease_s()
        place.disturb(lasts_s)
        return Fault(
            self.kind,
            f"{place.name}: {pids}",
            lasts_s=lasts_s,
            undo=lambda: send(pids, signal.SIGCONT),
        )


class StopProducer:
    """SIGSTOP of a producer, wherever its submit stands, and SIGCONT later."""

    kind = "stop a producer beyond the lease"
    weight = 9.0  #: as often as workers are stopped
    alone = False

    def fits(self, scene: Scene) -> bool:
        return True

    def strike(self, scene: Scene) -> Fault | None:
        calm = [place for place in scene.producers if not place.disturbed]
        if not calm:
            return None
        place = scene.chance.choice(calm)
        send([place.pid], signal.SIGSTOP)
        lasts_s = scene.beyond_lease_s()
        place.disturb(lasts_s)
        return Fault(
            self.kind,
            f"{place.name}: {place.pid}",
            lasts_s=lasts_s,
            undo=lambda: send([place.pid], signal.SIGCONT),
        )


class KillProducer:
    """A producer dies in its next submit, and tells no one of the answer; another takes over."""

    kind = "kill a producer in mid-submit"
    weight = 4.0
    alone = False

    def fits(self, scene: Scene) -> bool:
        return True

    def strike(self, scene: Scene) -> Fault | None:
        calm = [place for place in scene.producers if not place.disturbed]
        if not calm:
            return None
        place = scene.chance.choice(calm)
        send([place.pid], signal.SIGUSR1)
        return Fault(self.kind, f"{place.name}: {place.pid}")


SIGNALS: Final[tuple[Injector, ...]] = (
    Kill("kill a worker", 6, _first, supervised=False),
    Kill("kill a child under its supervisor", 6, _one_child, supervised=True),
    Kill("kill a supervisor", 3, _first, supervised=True),
    Kill("kill a supervisor and its children", 3, _everybody, supervised=True),
    Kill("kill a process that runs one job", 2, _one_grandchild, supervised=True),
    Stop("stop a worker beyond its lease", 3, _first, supervised=False),
    Stop("stop a child under its supervisor", 2, _one_child, supervised=True),
    Stop("stop a supervisor beyond the lease", 1, _first, supervised=True),
    Stop("stop a supervisor and its children beyond the lease", 3, _everybody, supervised=True),
    StopProducer(),
    KillProducer(),
)
