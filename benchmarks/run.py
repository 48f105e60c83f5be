# SPDX-License-Identifier: MIT
"""Measure Packhorse beside its peers and the bare loop, and hold the ratios against the bounds.

A missed bound is printed, never an error: figures depend on the machine, and people judge them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import msgspec

from benchmarks import machine, report
from benchmarks.bench import Bench, say
from benchmarks.bounds import judge_all
from benchmarks.ledger import Ledger
from benchmarks.peers.catalogue import PEERS
from benchmarks.settings import FULL, QUICK, SINGLES_SHARE, Settings
from benchmarks.stage import Stage

_HERE: Final = Path(__file__).resolve().parent
_RESULTS: Final = _HERE / "results"
#: Beside the source, so that the files lie on a disk: the folder for passing files may be memory.
_WORK: Final = _HERE.parent / ".cache" / "benchmarks"

_STORES: Final = ("sqlite", "postgres", "redis")
#: What may be asked for; not every store has all of it.
_MEASURES: Final = (
    *("drain", "submit", "scaling", "mixed", "steps", "limits", "queues", "large", "processes"),
    *("pickup", "saturated", "poisson", "foreign", "idle", "claims", "blocked"),
    *("snapshot", "durability", "memory", "steady"),
)
_NO_PEER: Final = "none"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, write the results, print the bounds."""
    options = _parser().parse_args(arguments)
    directory = options.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    with _stage(options.store, directory, options.peers) as stage:
        bench = Bench(directory, _settings(options), Ledger(), stage)
        facts = {**machine.facts(directory), **stage.facts}
        began = time.monotonic()
        _measure(bench, options.only or _MEASURES)
        minutes = (time.monotonic() - began) / 60
        facts["run"] = f"{bench.settings.rounds} rounds in {minutes:.1f} minutes"
    notes = {note.label: report.after_failures(note, bench.failed) for note in stage.peers}
    if options.merge:
        earlier = report.add_earlier(options.output, options.store, bench.ledger, facts)
        notes |= {label: note for label, note in earlier.items() if notes[label].absent}
    verdicts = judge_all(stage.bounds(bench.settings, bench.ledger), bench.ledger)
    found = report.Report(
        title=stage.title,
        facts=facts,
        settings=bench.settings,
        verdicts=verdicts,
        charted=stage.charted,
        method=stage.method,
        peers=list(notes.values()),
    )
    report.write(found, bench.ledger, options.output, options.store)
    print("\n".join(report.bound_lines(verdicts)))
    say(f"written: {options.store}.md, .json and .svg in {options.output}")
    return 0


def _stage(
    store: str, directory: Path, peers: Sequence[str] | None
) -> AbstractContextManager[Stage]:
    """Only what a store needs is imported: the others' drivers may be missing."""
    match store:
        case "postgres":
            from benchmarks.stores.postgres import postgres_stage

            return postgres_stage(directory, peers, say)
        case "redis":
            from benchmarks.stores.redis import redis_stage

            return redis_stage(directory, peers, say)
        case _:
            from benchmarks.stores.sqlite import sqlite_stage

            return sqlite_stage(directory, peers)


def _measure(bench: Bench, chosen: Sequence[str]) -> None:
    rounds, once = bench.stage.rounds, bench.stage.once
    for number in range(bench.settings.rounds):
        for name in [name for name in rounds if name in chosen]:
            bench.say(f"round {number + 1} of {bench.settings.rounds}: {name}")
            rounds[name](bench, number)
    for name in [name for name in once if name in chosen]:
        bench.say(name)
        once[name](bench)


def _settings(options: argparse.Namespace) -> Settings:
    given = {
        "rounds": options.rounds,
        "jobs": options.jobs,
        "pickup_seconds": options.latency_seconds,
        "idle_seconds": options.idle_seconds,
        "steady_seconds": options.steady_seconds,
    }
    base = QUICK if options.quick else FULL
    given["singles"] = round(base.singles * SINGLES_SHARE.get(options.store, 1))
    return msgspec.structs.replace(
        base, **{name: value for name, value in given.items() if value is not None}
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--store", choices=_STORES, default="sqlite")
    parser.add_argument("--quick", action="store_true", help="three small rounds")
    parser.add_argument("--rounds", type=_at_least(1), help=f"default {FULL.rounds}")
    parser.add_argument("--jobs", type=_at_least(1000), help=f"a drain; default {FULL.jobs:,}")
    parser.add_argument(
        "--latency-seconds", type=_at_least(1), help=f"default {FULL.pickup_seconds}"
    )
    parser.add_argument("--idle-seconds", type=_at_least(1), help=f"default {FULL.idle_seconds}")
    steady = f"default {FULL.steady_seconds}"
    parser.add_argument("--steady-seconds", type=_at_least(1), help=steady)
    only = f"some of: {', '.join(_MEASURES)}; with commas"
    parser.add_argument("--only", type=_names(_MEASURES), help=only)
    peers = ("huey", *(peer.name for peer in PEERS), _NO_PEER)
    who = f"some of: {', '.join(dict.fromkeys(peers))}; with commas; default all of the store"
    parser.add_argument("--peers", type=_names(peers), help=who)
    keep = "keep the figures of the last run that this one does not measure"
    parser.add_argument("--merge", action="store_true", help=keep)
    parser.add_argument("--directory", type=Path, default=_WORK, help="where the databases lie")
    parser.add_argument("--output", type=Path, default=_RESULTS, help="where the results go")
    return parser


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
    def names(text: str) -> list[str]:
        given = text.split(",")
        unknown = [name for name in given if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"nothing is called {', '.join(unknown)}")
        return given

    return names


def _at_least(least: int) -> Callable[[str], int]:
    def count(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"give {least} or more")
        return number

    return count


if __name__ == "__main__":
    sys.exit(main())
