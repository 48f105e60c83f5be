# SPDX-License-Identifier: MIT
"""The rig's workers, with and without a supervisor; those that die are replaced."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from typing import Final

from faults.calls import KINDS, queue_of
from faults.clocks import CLOCK_VARIABLE, CLOCKWORK
from faults.processes import PATIENCE_S, children_of, lives, send, tree_of
from faults.records import machine_us, recorded_pids
from faults.stores.ground import Door, Ground
from faults.tasks import PROCESS_QUEUE
from faults.worlds import IN_PROCESS_VARIABLE, World
from packhorse.core.clock import SECOND_US

APP: Final = "faults.tasks:create_app"
CONCURRENCY: Final = 8
#: Of a supervised worker.
CHILDREN: Final = 2
#: What a child that runs one job at a time may have: enough to live, less than `gobble` wants.
CHILD_MEMORY_MIB: Final = 1_500
SHUTDOWN_S: Final = 10
#: The name of a worker, and of the queue it serves, in which there is nothing.
_BYSTANDER: Final = "bystander"
_STEADY: Final = "steady"


def environment_of(world: World, door: Door) -> dict[str, str]:
    """What a process must know to go through a door."""
    path = f"{CLOCKWORK}:{world.environment['PYTHONPATH']}"
    return {"PACKHORSE_URL": door.url, "PYTHONPATH": path, CLOCK_VARIABLE: str(door.clock.path)}


class Place:
    """One worker after another, through the same door."""

    def __init__(self, name: str, door: Door, *, supervised: bool) -> None:
        self.name = name
        self.door = door
        self.supervised = supervised
        self.process: subprocess.Popen[str] | None = None
        self.busy_until_us = 0  #: stopped, cut off or otherwise disturbed until then

    @property
    def pid(self) -> int:
        """Of the process that was started: a supervisor, or a worker without one."""
        return 0 if self.process is None else self.process.pid

    def children(self) -> list[int]:
        """The worker processes under the supervisor."""
        return [pid for pid in children_of(self.pid) if lives(pid)] if self.supervised else []

    def grandchildren(self) -> list[int]:
        """The processes that run one job at a time."""
        below = self.children() if self.supervised else [self.pid]
        return [pid for child in below for pid in children_of(child) if lives(pid)]

    def tree(self) -> list[int]:
        """All of them, the one that was started first."""
        return tree_of(self.pid)

    @property
    def disturbed(self) -> bool:
        """Whether it is stopped, or cut off."""
        return self.busy_until_us > machine_us()

    def disturb(self, seconds: float) -> None:
        """Leave it alone for so long: it has enough to bear."""
        self.busy_until_us = machine_us() + round(seconds * SECOND_US)


class Workers:
    """All places, and who of them died when."""

    def __init__(self, world: World, ground: Ground, lease_s: float, layout: str) -> None:
        self.world = world
        self.lease_s = lease_s
        self.died_us: dict[int, int] = {}
        self.exits: list[int] = []  #: codes of those that were not asked to go
        self._known: set[int] = set()
        names = [(f"{kind}-{number}", kind == "s") for number, kind in enumerate(layout)]
        self.places = [Place(name, ground.door(name), supervised=sup) for name, sup in names]
        #: Runs no job and is never disturbed: one worker can always rescue.
        self._bystander = Place(_BYSTANDER, ground.door(_BYSTANDER), supervised=False)
        #: Is never disturbed either: one worker can always run rescued jobs.
        self._steady = Place(_STEADY, ground.door(_STEADY), supervised=True)
        self.tend()

    def tend(self) -> None:
        """Note who died since, and put another in each empty place."""
        self._note_deaths()
        for place in self._all:
            code = None if place.process is None else place.process.poll()
            if place.process is None or code is not None:
                self.exits += [] if code is None else [code]
                place.process = self._start(place)

    def working(self) -> list[Place]:
        """Those that have run something, and are not disturbed already."""
        recorded = recorded_pids(self.world.records)
        return [
            place
            for place in self.places
            if not place.disturbed and not recorded.isdisjoint(place.tree())
        ]

    def pids(self) -> list[int]:
        """Every process of every place."""
        return [pid for place in self.places for pid in place.tree()]

    def end(self) -> set[int]:
        """Ask all of them to leave; their exit codes."""
        send([process.pid for process in self._processes()], signal.SIGTERM)
        codes = {process.wait(PATIENCE_S) for process in self._processes()}
        self._note_deaths()
        return codes

    def last_words(self, length: int = 1_000) -> str:
        """What the living have complained of."""
        return "\n".join(self.world.output(process)[-length:] for process in self._processes())

    def _processes(self) -> Iterator[subprocess.Popen[str]]:
        return (place.process for place in self._all if place.process is not None)

    @property
    def _all(self) -> tuple[Place, ...]:
        return (*self.places, self._bystander, self._steady)

    def _note_deaths(self) -> None:
        self._known |= recorded_pids(self.world.records)
        for pid in self._known - self.died_us.keys():
            if not lives(pid):
                self.died_us[pid] = machine_us()

    def _start(self, place: Place) -> subprocess.Popen[str]:
        environment = environment_of(self.world, place.door)
        options = ["--lease", f"{self.lease_s}s", "--concurrency", str(CONCURRENCY)]
        options += ["--shutdown-timeout", f"{SHUTDOWN_S}s", "--log-level", "warning", "--no-banner"]
        if place.supervised:
            options += ["--processes", str(CHILDREN), "--process-slots", "1"]
            options += ["--process-memory-mib", str(CHILD_MEMORY_MIB)]
        else:
            environment[IN_PROCESS_VARIABLE] = "1"
            served = [_BYSTANDER] if place is self._bystander else _plain_queues()
            options += ["--queues", ",".join(served)]
        return self.world.start_worker(APP, *options, environment=environment)


def _plain_queues() -> list[str]:
    return sorted({queue_of(kind) for kind in KINDS} - {PROCESS_QUEUE})
