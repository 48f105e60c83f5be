# SPDX-License-Identifier: MIT
"""Jobs that do the damage themselves: out of memory, and poison."""

from __future__ import annotations

from typing import Final

from faults.injectors.fault import Fault, Injector, Scene
from faults.tasks import record
from packhorse import StoreUnavailable
from packhorse.core.clock import new_id


class Submitted:
    """A job of a task that takes something down."""

    alone = False

    def __init__(self, kind: str, weight: float, task: str) -> None:
        self.kind = kind
        self.weight = weight
        self._task = task

    def fits(self, scene: Scene) -> bool:
        return any(place.supervised for place in scene.workers.places)

    def strike(self, scene: Scene) -> Fault:
        scene.aside.submit(self._submit, scene)
        return Fault(self.kind, self._task)

    def _submit(self, scene: Scene) -> None:
        """Once: an answer that does not come is written down as such."""
        call = scene.app.tasks[self._task].call()
        job_id = new_id()
        try:
            scene.app.enqueue_many([call.using(job_id=job_id)])
        except StoreUnavailable as error:
            record.write_line("unsure" if error.maybe_stored else "refused", job_id)
        else:
            record.write_line("submitted", job_id)


JOBS: Final[tuple[Injector, ...]] = (
    Submitted("a child beyond its memory limit", 1, "gobble"),
    Submitted("a child killed as for want of memory", 2, "taken"),
    Submitted("a worker killed as for want of memory", 1, "swept"),
    Submitted("a job that takes its worker down each time", 0.5, "poison"),
    Submitted("a job that takes its child down each time", 0.5, "poison_child"),
)
