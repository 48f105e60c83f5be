# SPDX-License-Identifier: MIT
"""One run of a plan: workers, producers, faults by chance of the seed, then peace and a verdict."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from faults.checking.evidence import Standing
from faults.clocks import SteppedClock
from faults.collecting import Findings, collected, standing_of
from faults.injectors.fault import Fault, Injector, Scene
from faults.injectors.memory import JOBS
from faults.injectors.signals import SIGNALS
from faults.injectors.whole_store import WHOLE_STORE, StoreClock
from faults.injectors.wires import WIRES
from faults.plan import Plan
from faults.processes import until
from faults.producer import DEATHS, ENOUGH
from faults.records import machine_us
from faults.stores.ground import Ground
from faults.stores.opening import opened
from faults.tasks import create_app
from faults.workers import Place, Workers, environment_of
from faults.worlds import PAGE, World
from packhorse import Packhorse, StoreUnavailable
from packhorse.core.clock import SECOND_US
from packhorse.core.job import JobRecord, JobStatus
from packhorse.stores.requests import JobFilter

#: How long what is left may take: rescues wait longer each time.
DRAIN_S: Final = 300.0
#: A run is given up when it takes so many times as long as it should, and this.
PATIENCE_TIMES: Final = 6
PATIENCE_S: Final = 120.0
#: Jobs that are told of when that takes longer.
SHOWN_MAX: Final = 10
LOOK_S: Final = 0.02
#: The rig looks far more often than this, if it is let; workers have no better luck then.
STALL_US: Final = 250_000
#: Between two looks at where jobs stand.
STANDINGS_S: Final = 1.0
#: Seeds of producers that one plan has for itself.
SEEDS: Final = 100
UNFINISHED: Final = tuple(
    status
    for status in JobStatus
    if status not in (JobStatus.COMPLETED, JobStatus.CANCELLED, JobStatus.DEAD)
)


class Rig:
    """Disturbs until that is enough, then lets everything finish."""

    def __init__(self, world: World, ground: Ground, app: Packhorse, plan: Plan) -> None:
        self.world = world
        self.ground = ground
        self.app = app
        self.plan = plan
        self.chance = random.Random(plan.seed)
        self.faults: list[Fault] = []
        self.between: list[Standing] = []
        self.store_clock = StoreClock()
        self._seeds = itertools.count()
        self._open: list[Fault] = []  # to be undone
        self._looked_at = 0.0
        self.stalls: list[tuple[int, int]] = []  # when the machine did not let the rig run
        self._tended_us = machine_us()
        self._aside = ThreadPoolExecutor(2, "aside")
        self._looking: Future[None] | None = None

    def run(self) -> Findings:
        """Disturb, drain, and collect what is known."""
        began = time.monotonic()
        (self.world.folder / "effects").mkdir()
        self.app.store.migrate()
        workers = Workers(self.world, self.ground, self.plan.lease_s, self.plan.layout)
        producers = [self._producer(number) for number in range(self.plan.producers)]
        scene = Scene(
            *(workers, self.ground, self.app, self.chance, self.plan.lease_s),
            producers=producers,
            aside=self._aside,
        )
        self._disturb(scene)
        self._make_peace(scene)
        self._aside.shutdown()
        (self.world.records / ENOUGH).touch()
        self._drained(scene)
        codes = workers.end()
        return collected(self, workers, codes, time.monotonic() - began)

    def _producer(self, number: int) -> Place:
        name = f"producer-{number}"
        place = Place(name, self.ground.door(name), supervised=False)
        self._start_producer(place)
        return place

    def _start_producer(self, place: Place, *options: str) -> None:
        """Start one with a seed of its own, which is its name too where it counts."""
        seed = self.plan.seed * SEEDS + next(self._seeds)
        place.process = self.world.start(
            *("-m", "faults.producer", str(seed), *options),
            environment=environment_of(self.world, place.door),
        )

    def _tend_producers(self, scene: Scene) -> None:
        """Put another in the place of each that was killed."""
        for place in scene.producers:
            if place.process is not None and place.process.poll() in DEATHS:
                self._start_producer(place, "again")

    # ------------------------------------------------------------------------------- disturbing

    def _disturb(self, scene: Scene) -> None:
        injectors = self._injectors(scene)
        given_up = time.monotonic() + PATIENCE_TIMES * self.plan.faults * self.plan.peace_s
        given_up += PATIENCE_S
        next_at = time.monotonic() + self.plan.peace_s
        while len(self.faults) < self.plan.faults:
            self._tend(scene)
            self._look()
            now = time.monotonic()
            if now >= next_at:
                self._strike(scene, injectors)
                next_at = now + self.chance.expovariate(1 / self.plan.peace_s)
            if now > given_up:
                raise AssertionError(
                    f"{len(self.faults)} faults of {self.plan.faults}\n{scene.workers.last_words()}"
                )
            time.sleep(LOOK_S)

    def _injectors(self, scene: Scene) -> list[Injector]:
        known: tuple[Injector, ...] = (*SIGNALS, *JOBS, *WIRES, *WHOLE_STORE, self.store_clock)
        wanted = self.plan.only
        return [
            one
            for one in known
            if one.fits(scene) and (not wanted or any(word in one.kind for word in wanted))
        ]

    def _strike(self, scene: Scene, injectors: list[Injector]) -> None:
        away = any(fault.away for fault in self._open)
        ready = [one for one in injectors if not (one.alone and away)]
        if not ready:
            return
        chosen = self.chance.choices(ready, [one.weight for one in ready])[0]
        at_us = machine_us()
        fault = chosen.strike(scene)
        if fault is None:
            return
        fault.at_us, fault.until_us = at_us, machine_us()
        self.faults.append(fault)
        if fault.undo is not None:
            fault.until_us = at_us + round(fault.lasts_s * SECOND_US)
            self._open.append(fault)

    def _tend(self, scene: Scene) -> None:
        """Undo what has lasted long enough, and replace the dead."""
        before_us, now_us = self._tended_us, machine_us()
        self._tended_us = now_us
        if now_us - before_us > STALL_US:
            self.stalls.append((before_us, now_us))
        for fault in [fault for fault in self._open if fault.until_us <= now_us]:
            self._undo(fault)
        scene.workers.tend()
        self._tend_producers(scene)

    def _undo(self, fault: Fault) -> None:
        self._open.remove(fault)
        if fault.undo is not None:
            fault.undo()
        fault.until_us = machine_us()

    def _make_peace(self, scene: Scene) -> None:
        for fault in list(self._open):
            self._undo(fault)
        if self.store_clock.steps:
            self.store_clock.set(scene, 0)
        for place in scene.workers.places:
            place.door.clock.set(0)

    # ---------------------------------------------------------------------------------- looking

    def _look(self) -> None:
        """Note now and then where unfinished jobs stand, so that a counter that falls is seen."""
        now = time.monotonic()
        under_way = self._looking is not None and not self._looking.done()
        if not under_way and now - self._looked_at >= STANDINGS_S:
            self._looked_at = now
            self._looking = self._aside.submit(self._note_standings)

    def _note_standings(self) -> None:
        with suppress(StoreUnavailable):
            self.between += [standing_of(record) for record in self._unfinished(PAGE)]

    def _unfinished(self, limit: int) -> tuple[JobRecord, ...]:
        plan = self.app.store.inspection.search(JobFilter(statuses=UNFINISHED), limit=limit)
        return self.app.store.run(plan).jobs

    def _drained(self, scene: Scene) -> None:
        """Wait until everything is finished; if that takes too long, say why."""

        def look() -> bool:
            self._tend(scene)
            if any(code is None or code in DEATHS for code in _codes(scene)):
                return False
            try:
                return not self._unfinished(1)
            except StoreUnavailable:  # the last fault may have been a restart
                return False

        try:
            until("everything to be finished", look, DRAIN_S)
        except AssertionError as error:
            reasons = [
                f"{record}\n{self.app.explain(record.id)}" for record in self._unfinished(SHOWN_MAX)
            ]
            words = [str(error), *reasons, scene.workers.last_words()]
            raise AssertionError("\n".join(words)) from None
        if any(_codes(scene)):
            said = [self.world.output(one.process) for one in scene.producers if one.process]
            raise AssertionError("\n".join(said))


def _codes(scene: Scene) -> list[int | None]:
    """What the producers ended with; None: it has not ended."""
    return [None if one.process is None else one.process.poll() for one in scene.producers]


def run_rig(folder: Path, plan: Plan) -> Findings:
    """Run a plan in a folder on a store of its own; no process outlives it."""
    with _staged(folder, plan) as (world, ground, app):
        return Rig(world, ground, app, plan).run()


@contextmanager
def _staged(folder: Path, plan: Plan) -> Iterator[tuple[World, Ground, Packhorse]]:
    ground = opened(plan.store, folder)
    clock = None if ground.clock is None else SteppedClock(ground.clock)
    app = create_app(ground.url, clock=clock)
    world = World(folder, ground.url)
    ends: list[Callable[[], object]] = [world.end, app.close, ground.close]
    try:
        yield world, ground, app
    finally:
        for end in ends:
            end()
