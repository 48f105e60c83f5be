# SPDX-License-Identifier: MIT
"""SQLite: Packhorse and the bare loop at two durabilities, and Huey."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from benchmarks import machine
from benchmarks.bench import Bench
from benchmarks.contestants import (
    BARE,
    DURABILITIES,
    bare,
    huey,
    huey_synchronous,
    packhorse,
    packhorse_store,
)
from benchmarks.measures import (
    blocked_work,
    claim_work,
    drain,
    idle,
    limits,
    memory,
    pickup,
    saturated,
    scaling,
    shapes,
    steady,
    steps,
    submit,
)
from benchmarks.sqlite_bounds import sqlite_bounds
from benchmarks.stage import Entry, PeerNote, Stage

ROUNDS: Final = MappingProxyType(
    {
        "drain": drain.measure_round,
        "submit": submit.measure_round,
        "scaling": scaling.measure_round,
        "mixed": scaling.measure_mixed_round,
        "steps": steps.measure_round,
        "limits": limits.measure_round,
        "queues": shapes.measure_queues,
        "large": shapes.measure_large,
    }
)
ONCE: Final[Mapping[str, Callable[[Bench], None]]] = MappingProxyType(
    {
        "pickup": pickup.measure,
        "saturated": saturated.measure,
        "poisson": shapes.measure_poisson,
        "foreign": shapes.measure_foreign,
        "idle": idle.measure,
        "claims": claim_work.measure,
        "blocked": partial(blocked_work.measure, counted=claim_work.counted, unit="VM steps"),
        "memory": memory.measure,
        "steady": steady.measure,
    }
)
#: Four of a thousand singles, in each of which the log is written back into the file.
_TURNS: Final = 4
_METHOD: Final = """
- FULL waits for the disk at every commit, NORMAL does not; each is compared with the like.
- The bare loop is the statements alone, on the same event loop, claiming 500 at a time, as a
  Packhorse worker does at most. “With ids” is the same with ids that callers make, kept unique.
- Submits are made in turns of a second or less, so that the contestants share every mood of the
  disk; a round's rate is the median turn. Every turn is a thousand jobs, in which SQLite writes its
  log of a thousand pages back into the file at least once for each contestant. (Turns of 250 left
  that to chance: the median turn was one without, for who writes two pages a job as for who writes
  one.)
""".strip()


@contextmanager
def sqlite_stage(directory: Path, names: Sequence[str] | None) -> Iterator[Stage]:
    """A file for each measurement; nothing has to be started."""
    peers = [huey()] if names is None or "huey" in names else []
    ours = packhorse("FULL")
    yield Stage(
        name="sqlite",
        title="Packhorse on SQLite, measured",
        ours=ours,
        with_slots=lambda slots: packhorse("FULL", slots=slots),
        drains=[
            *(packhorse(synchronous) for synchronous in DURABILITIES),
            *(bare(synchronous, drain.BARE_BATCH) for synchronous in DURABILITIES),
            packhorse("FULL", lines="lines"),
            *peers,
        ],
        submits=list(_submits(with_peer=bool(peers))),
        turns=_TURNS,
        waiting=[ours, *peers],
        open_store=packhorse_store,
        server=str,
        rounds=ROUNDS,
        once=ONCE,
        bounds=lambda settings, _: sqlite_bounds(settings),
        charted=(drain.RATE, submit.ONE, submit.ASYNC_ONE, submit.MANY),
        method=_METHOD,
        facts=machine.sqlite_facts(),
        peers=[_note(directory, absent="" if peers else "left out of this run")],
        place=lambda _: nullcontext(),
        after_filling=lambda _: None,
    )


def _note(directory: Path, absent: str) -> PeerNote:
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        synchronous = "FULL" if absent else huey_synchronous(Path(folder))
    return PeerNote(
        "Huey",
        f"huey {machine.version_of('huey')}",
        f"as it comes: its connections are at {synchronous}, it has one worker thread (its "
        "default, and its fastest setting on SQLite), results are kept; no async handlers, no bulk "
        "submit",
        absent,
    )


def _submits(*, with_peer: bool) -> Iterator[list[Entry]]:
    for synchronous in DURABILITIES:
        ours, bare_loop = packhorse(synchronous), bare(synchronous, 1)
        peers = [huey()] if with_peer and synchronous == "FULL" else []
        named = f"{BARE} with ids {synchronous}"
        yield [
            Entry(submit.ONE, "one", ours, ours.label),
            Entry(submit.ONE, "one", bare_loop, bare_loop.label),
            Entry(submit.ONE, "one, named", bare_loop, named),
            *(Entry(submit.ONE, "one", peer, peer.label) for peer in peers),
        ]
        yield [
            Entry(submit.ASYNC_ONE, "async one", ours, ours.label),
            Entry(submit.ASYNC_ONE, "async one", bare_loop, bare_loop.label),
            Entry(submit.CONCURRENT, "concurrent", ours, ours.label),
        ]
        yield [
            Entry(submit.MANY, "many", ours, ours.label),
            Entry(submit.MANY, "many", bare_loop, bare_loop.label),
            Entry(submit.MANY, "many, named", bare_loop, named),
            *(Entry(submit.MANY, "one", peer, peer.label) for peer in peers),  # no bulk submit
        ]
