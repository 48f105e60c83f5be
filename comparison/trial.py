# SPDX-License-Identifier: MIT
"""One contestant through the whole schedule: a store of its own, two workers, a stream of jobs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.processes import ROOT, run_to_end
from comparison import place, plan
from comparison.catalogue import URL, WORKER, Contestant
from comparison.judge import Verdict, judge, read
from comparison.result import Settings, Trial
from comparison.stores import opened
from comparison.workers import Worker

#: How long a first job may take to be done, with all that has to start before.
_BEGIN_SECONDS_MAX: Final = 120.0
#: How often the record and the workers are looked at.
_LOOK_SECONDS: Final = 0.5
#: The record stands still for so long before a run is over ahead of its bound.
_STILL_SECONDS: Final = 10.0
_ANSWER_SECONDS_MAX: Final = 60.0
_TAIL_CHARACTERS: Final = 1500


@dataclass(slots=True)
class _Stage:
    """What one trial has to do with."""

    contestant: Contestant
    python: str
    environment: Mapping[str, str]
    record: Path
    workers: Sequence[Worker]
    stop: threading.Event  #: the whole run is given up
    down: set[int] = field(default_factory=set)  #: workers that are away on purpose
    exits: int = 0

    def program(self, *words: str) -> list[str]:
        return [self.python, "-m", "comparison.submit", self.contestant.module, *words]

    def answer(self, *words: str) -> str:
        told = run_to_end(
            self.program(*words),
            environment=self.environment,
            seconds_max=_ANSWER_SECONDS_MAX,
        )
        return told.decode().strip()

    def verdict(self, held: int = 0) -> Verdict:
        return judge(read(self.record.read_text().splitlines()), held)


def run_trial(
    contestant: Contestant,
    programs: Path,
    folder: Path,
    settings: Settings,
    stop: threading.Event,
) -> Trial:
    """Run it, unless told to stop; everything it starts has ended when this returns."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        url, server = stack.enter_context(opened(contestant.store, folder))
        stage = _set_up(contestant, programs, folder, url, stop)
        stage.answer("prepare")
        with _at_work(stage):
            took = _perform(stage, folder, settings)
        held = int(stage.answer("held"))
        return Trial(
            verdict=stage.verdict(held), took=round(took, 1), exits=stage.exits, server=server
        )


def _set_up(
    contestant: Contestant, programs: Path, folder: Path, url: str, stop: threading.Event
) -> _Stage:
    record = folder / "record"
    record.touch()
    environment = {
        place.STORE: url,
        place.RECORD: str(record),
        place.QUICK: "1" if contestant.quick else "0",
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src"))),
    }
    first, *rest = contestant.command
    workers = [
        Worker(
            [str(programs / first), *(_filled(word, url, number) for word in rest)],
            copies=contestant.copies,
            environment=environment,
            folder=folder,
            name=f"worker{number}",
        )
        for number in range(plan.WORKERS)
    ]
    python = sys.executable if not contestant.peer else str(programs / "python")
    return _Stage(contestant, python, environment, record, workers, stop)


def _filled(word: str, url: str, number: int) -> str:
    return word.replace(URL, url).replace(WORKER, str(number))


@contextmanager
def _at_work(stage: _Stage) -> Iterator[None]:
    try:
        for worker in stage.workers:
            worker.start()
        yield
    finally:
        for worker in stage.workers:
            worker.stop()


def _perform(stage: _Stage, folder: Path, settings: Settings) -> float:
    """Submit, wait for the first job, let the faults happen, wait for the rest."""
    with _submitter(stage, folder, settings) as submitter:
        begin_by = time.monotonic() + _BEGIN_SECONDS_MAX
        _wait(stage, begin_by, lambda: stage.verdict().completed > 0)
        if not stage.verdict().completed:
            said = stage.workers[0].output()[-_TAIL_CHARACTERS:]
            raise RuntimeError(f"no job was done in {_BEGIN_SECONDS_MAX:g} s: {said}")
        zero = time.monotonic()
        for at, action in _actions(stage, plan.faults(settings.seed, settings.seconds)):
            _wait(stage, zero + at)
            action()
        end = zero + settings.seconds
        _wait(stage, end)
        _wait(stage, end + settings.drain, _settled(stage, submitter))
        return time.monotonic() - zero


@contextmanager
def _submitter(
    stage: _Stage, folder: Path, settings: Settings
) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "submit.log").open("wb") as log:
        process = subprocess.Popen(
            stage.program("stream", str(settings.seed), str(settings.seconds)),
            env={**os.environ, **stage.environment},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _actions(
    stage: _Stage, faults: Sequence[plan.Fault]
) -> list[tuple[float, Callable[[], object]]]:
    """What to do to the workers, and when, in order of time."""
    timed: list[tuple[float, Callable[[], object]]] = []
    for fault in faults:
        begin, end = _kill(stage, fault.worker) if fault.kind == "kill" else _pause(stage, fault)
        timed += [(fault.at, begin), (fault.at + fault.seconds, end)]
    return sorted(timed, key=lambda one: one[0])


def _kill(stage: _Stage, number: int) -> tuple[Callable[[], object], Callable[[], object]]:
    worker = stage.workers[number]

    def begin() -> None:
        stage.down.add(number)
        worker.kill()

    def end() -> None:
        worker.start()
        stage.down.discard(number)

    return begin, end


def _pause(stage: _Stage, fault: plan.Fault) -> tuple[Callable[[], object], Callable[[], object]]:
    worker, family = stage.workers[fault.worker], []

    def begin() -> None:
        stage.down.add(fault.worker)
        family.extend(worker.pause())

    def end() -> None:
        worker.resume(family)
        stage.down.discard(fault.worker)

    return begin, end


def _wait(stage: _Stage, until: float, is_so: Callable[[], bool] = lambda: False) -> None:
    """Wait until then, or until it is so; a worker that left by itself is started again."""
    while time.monotonic() < until and not is_so():
        if stage.stop.wait(min(_LOOK_SECONDS, max(0.0, until - time.monotonic()))):
            raise RuntimeError("the run was given up")
        for number, worker in enumerate(stage.workers):
            if number not in stage.down and worker.ended:
                stage.exits += 1
                worker.kill()
                worker.start()


def _settled(stage: _Stage, submitter: subprocess.Popen[bytes]) -> Callable[[], bool]:
    """Whether all is done and the record has stood still for a while."""
    seen: tuple[int, float] = (-1, 0.0)

    def is_so() -> bool:
        nonlocal seen
        size, now = stage.record.stat().st_size, time.monotonic()
        if size != seen[0]:
            seen = (size, now)
        if submitter.poll() is None or now - seen[1] < _STILL_SECONDS:
            return False
        return stage.verdict().missing == 0

    return is_so
