# SPDX-License-Identifier: MIT
"""Faults that hit all processes: the server crashes or stops, the disk is full, clocks step."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from faults.checking.timeline import Step
from faults.injectors.fault import Fault, Injector, Scene
from faults.records import machine_us
from packhorse.core.clock import SECOND_US

#: How far the store's clock is stepped at most, in leases. Below one, so that a step ahead alone
#: does not end the lease of a worker that renews in time.
_STEP_LEASES_MAX: Final = 0.75
#: How far a worker's is, which decides nothing: an hour.
_WORKER_STEP_US: Final = 3_600 * SECOND_US
#: The longest a file may be on a full disk: the store's are longer, records are not.
_FULL_BYTES: Final = 48 * 1024


class Restart:
    """The server crashes, and is started again."""

    kind = "restart the server"
    weight = 2.0
    alone = True

    def fits(self, scene: Scene) -> bool:
        return scene.ground.can_restart

    def strike(self, scene: Scene) -> Fault:
        scene.ground.restart()
        return Fault(self.kind, away=True)


class Pause:
    """Let the store answer no process for longer than a lease."""

    kind = "pause the store beyond the lease"
    weight = 2.0
    alone = True

    def fits(self, scene: Scene) -> bool:
        return True

    def strike(self, scene: Scene) -> Fault | None:
        if not scene.ground.pause():
            return None
        return Fault(self.kind, lasts_s=scene.beyond_lease_s(), undo=scene.ground.resume, away=True)


class FullDisk:
    """No file of the workers and producers may grow."""

    kind = "fill the disk"
    weight = 3.0
    alone = True

    def fits(self, scene: Scene) -> bool:
        return scene.ground.name == "sqlite"

    def strike(self, scene: Scene) -> Fault:
        pids = [*scene.workers.pids(), *(place.pid for place in scene.producers)]
        _limit(pids, _FULL_BYTES)
        lasts_s = scene.lease_s * scene.chance.uniform(0.3, 2.0)
        return Fault(
            self.kind,
            f"{len(pids)} processes",
            lasts_s=lasts_s,
            undo=lambda: _limit(pids, resource.RLIM_INFINITY),
            away=True,
        )


def _limit(pids: Sequence[int], size: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


class StoreClock:
    """The clock that judges is set, a little ahead or back."""

    kind = "step the store's clock"
    weight = 2.0
    alone = True

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def fits(self, scene: Scene) -> bool:
        return scene.ground.can_step

    def strike(self, scene: Scene) -> Fault:
        farthest_us = _STEP_LEASES_MAX * scene.lease_s * SECOND_US / 2
        offset_us = round(scene.chance.uniform(-farthest_us, farthest_us))
        self.set(scene, offset_us)
        return Fault(self.kind, f"{offset_us / SECOND_US:+.2f} s")

    def set(self, scene: Scene, offset_us: int) -> None:
        """Step it, and write down when."""
        scene.ground.step(offset_us)
        self.steps.append(Step(machine_us(), offset_us))


class WorkerClock:
    """The clock of one worker, supervisor and all, is an hour wrong from now on."""

    kind = "step a worker's clock"
    weight = 2.0
    alone = False

    def fits(self, scene: Scene) -> bool:
        return scene.ground.clock is None  # else it is the store's

    def strike(self, scene: Scene) -> Fault | None:
        place = scene.victim()
        if place is None:
            return None
        now_us = place.door.clock.offset_us
        others = {-_WORKER_STEP_US, 0, _WORKER_STEP_US} - {now_us}
        offset_us = scene.chance.choice(sorted(others))
        place.door.clock.set(offset_us)
        return Fault(self.kind, f"{place.name}: {offset_us / SECOND_US:+.0f} s")


WHOLE_STORE: Final[tuple[Injector, ...]] = (Restart(), Pause(), FullDisk(), WorkerClock())
