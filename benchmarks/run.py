# SPDX-License-Identifier: MIT
"""Measure Packhorse beside a peer and the bare loop, and hold the ratios against the bounds.

A missed bound is printed, never an error: figures depend on the machine, and people judge them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from benchmarks import machine, report
from benchmarks.bench import Bench
from benchmarks.bounds import judge_all
from benchmarks.contestants import huey_synchronous
from benchmarks.ledger import Ledger
from benchmarks.measures import claim_work, drain, idle, memory, pickup, scaling, submit
from benchmarks.settings import FULL, QUICK, Settings
from benchmarks.sqlite_bounds import sqlite_bounds

__all__ = ["main"]

_HERE: Final = Path(__file__).resolve().parent
_RESULTS: Final = _HERE / "results"
#: Beside the source, so that the files lie on a disk: the folder for passing files may be memory.
_WORK: Final = _HERE.parent / ".cache" / "benchmarks"

_ROUNDS: Final[Mapping[str, Callable[[Bench, int], None]]] = MappingProxyType(
    {
        "drain": drain.measure_round,
        "submit": submit.measure_round,
        "scaling": scaling.measure_round,
    }
)
_ONCE: Final[Mapping[str, Callable[[Bench], None]]] = MappingProxyType(
    {
        "pickup": pickup.measure,
        "idle": idle.measure,
        "claims": claim_work.measure,
        "memory": memory.measure,
    }
)
_CHARTED: Final = (drain.RATE, submit.ONE, submit.ASYNC_ONE, submit.MANY)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, write the results, print the bounds."""
    options = _parser().parse_args(arguments)
    chosen = options.only or [*_ROUNDS, *_ONCE]
    directory = options.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    facts = machine.facts(directory)
    bench = Bench(directory, _settings(options), Ledger())
    with bench.folder() as folder:
        facts["Huey's durability"] = f"synchronous {huey_synchronous(folder)}, as it comes"
    began = time.monotonic()
    _measure(bench, chosen)
    facts["run"] = (
        f"{bench.settings.rounds} rounds in {(time.monotonic() - began) / 60:.1f} minutes"
    )
    found = report.Report(
        title="Packhorse on SQLite, measured",
        facts=facts,
        settings=bench.settings,
        verdicts=judge_all(sqlite_bounds(bench.settings), bench.ledger),
        charted=_CHARTED,
    )
    report.write(found, bench.ledger, options.output, options.store)
    print("\n".join(report.bound_lines(found.verdicts)))
    bench.say(f"written: {options.store}.md, .json and .svg in {options.output}")
    return 0


def _measure(bench: Bench, chosen: Sequence[str]) -> None:
    for number in range(bench.settings.rounds):
        for name in [name for name in _ROUNDS if name in chosen]:
            bench.say(f"round {number + 1} of {bench.settings.rounds}: {name}")
            _ROUNDS[name](bench, number)
    for name in [name for name in _ONCE if name in chosen]:
        bench.say(name)
        _ONCE[name](bench)


def _settings(options: argparse.Namespace) -> Settings:
    given = {
        "rounds": options.rounds,
        "jobs": options.jobs,
        "pickup_seconds": options.latency_seconds,
        "idle_seconds": options.idle_seconds,
    }
    base = QUICK if options.quick else FULL
    return msgspec.structs.replace(
        base, **{name: value for name, value in given.items() if value is not None}
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--store", choices=["sqlite"], default="sqlite")
    parser.add_argument("--quick", action="store_true", help="three small rounds")
    parser.add_argument("--rounds", type=_at_least(1), help=f"default {FULL.rounds}")
    parser.add_argument("--jobs", type=_at_least(1000), help=f"a drain; default {FULL.jobs:,}")
    parser.add_argument(
        "--latency-seconds", type=_at_least(1), help=f"default {FULL.pickup_seconds}"
    )
    parser.add_argument("--idle-seconds", type=_at_least(1), help=f"default {FULL.idle_seconds}")
    names = ", ".join([*_ROUNDS, *_ONCE])
    parser.add_argument("--only", type=_names, help=f"some of: {names}; with commas")
    parser.add_argument("--directory", type=Path, default=_WORK, help="where the databases lie")
    parser.add_argument("--output", type=Path, default=_RESULTS, help="where the results go")
    return parser


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in {*_ROUNDS, *_ONCE}]
    if unknown:
        raise argparse.ArgumentTypeError(f"nothing is called {', '.join(unknown)}")
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
