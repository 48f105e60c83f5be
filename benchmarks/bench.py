# SPDX-License-Identifier: MIT
"""What every measure is given: a place for files, the sizes, the ledger; and the common moves."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from benchmarks import probe
from benchmarks.contestants import Contestant
from benchmarks.ledger import Ledger
from benchmarks.processes import Conversation, Program, conversing, python, started
from benchmarks.settings import Settings
from benchmarks.stage import Stage
from benchmarks.workloads.producer import Timing

T = TypeVar("T")

#: No load of a run goes on for longer; a worker this slow has stopped working.
LOAD_SECONDS_MAX: Final = 300.0
_LOOK_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Bench:
    """One run."""

    directory: Path
    settings: Settings
    ledger: Ledger
    stage: Stage
    failed: dict[str, str] = field(default_factory=dict)  #: peers that gave up, and why

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """An empty folder, and an empty store, for one measurement; removed after it."""
        path = Path(tempfile.mkdtemp(dir=self.directory))
        try:
            with self.stage.place(path):
                yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def takes_part(self, contestant: Contestant) -> bool:
        """Whether it has not failed earlier in this run."""
        return contestant.label not in self.failed

    @contextmanager
    def forgiving(self, contestant: Contestant) -> Iterator[None]:
        """A peer that fails is out of the rest of the run, which goes on without it."""
        try:
            yield
        except RuntimeError as error:
            if not contestant.is_peer:
                raise
            self.failed[contestant.label] = str(error)
            self.say(f"  {contestant.label} failed and takes no part from now on: {error}")

    def say(self, text: str) -> None:
        """Tell how far the run is."""
        say(text)


def say(text: str) -> None:
    """Tell how far the run is."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def rotated(items: Sequence[T], by: int) -> list[T]:
    """The items in order, beginning elsewhere each round, so that no item is always first."""
    start = by % len(items)
    return [*items[start:], *items[:start]]


class Producer:
    """A process that submits jobs when it is told to."""

    def __init__(self, asked: Conversation) -> None:
        self._asked = asked

    def submit(self, count: int) -> Timing:
        """Submit so many; says how long that took."""
        return msgspec.json.decode(self._asked.ask(str(count)), type=Timing)


@contextmanager
def producing(contestant: Contestant, folder: Path, way: str) -> Iterator[Producer]:
    """Start a producer, and end it."""
    command = (
        python("benchmarks.workloads.producer", contestant.program, way)
        if contestant.producer is None
        else contestant.producer(way)
    )
    environment = contestant.environment(folder)
    with conversing(command, environment=environment, log=folder / "producer.log") as asked:
        yield Producer(asked)


def filled(contestant: Contestant, folder: Path, way: str, count: int) -> None:
    """Submit `count` jobs in a process of its own."""
    with producing(contestant, folder, way) as producer:
        producer.submit(count)


def drained(
    bench: Bench, contestant: Contestant, folder: Path, count: int, *, way: str = "many"
) -> probe.Reading:
    """Fill a store, let one worker drain it, and see that nothing is missing."""
    filled(contestant, folder, way, count)
    bench.stage.after_filling(folder)
    return worked_off(contestant, folder, count)


def worked_off(contestant: Contestant, folder: Path, count: int) -> probe.Reading:
    """Let one worker drain `count` jobs that are there, and see that nothing is missing."""
    path = folder / "probe"
    probe.new_probe(path, count)
    environment = {**contestant.environment(folder), probe.PROBE: str(path)}
    command, log = contestant.worker(folder), folder / "log"
    gently = not contestant.is_peer  # what a peer still has to put away is not waited for
    with started(command, environment=environment, log=log, gently=gently) as program:
        if contestant.several:
            wait_until(probe.reached(path, 1), program)
        before = program.cpu_seconds() if contestant.several else 0.0
        wait_until(probe.reached(path, count), program)
        used = program.cpu_seconds() - before if contestant.several else 0.0
        wait_until(lambda: contestant.finished(folder) >= count, program)
    reading = probe.read(path)
    return replace(reading, cpu_seconds=used) if contestant.several else reading


def wait_until(reached: Callable[[], bool], program: Program) -> None:
    """Look until it is so; an error when it never will be."""
    deadline = time.monotonic() + LOAD_SECONDS_MAX
    while not reached():
        if program.ended and not reached():
            raise RuntimeError(f"the worker ended before its work was done:\n{program.output()}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"not done in {LOAD_SECONDS_MAX:.0f} s:\n{program.output()}")
        time.sleep(_LOOK_SECONDS)
