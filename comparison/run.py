# SPDX-License-Identifier: MIT
"""Kill and pause workers of Packhorse and its peers, and count what became of the jobs."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final

from benchmarks import machine
from benchmarks.peers.environments import Absent, python_programs
from benchmarks.processes import ROOT
from comparison import report
from comparison.catalogue import CONTESTANTS, Contestant, named
from comparison.result import Settings, Trial
from comparison.trial import run_trial

#: Beside the source, so that the stores lie on a disk: the folder for passing files may be memory.
_WORK: Final = ROOT / ".cache" / "comparison"
_SECONDS_MIN: Final = 60
_STAGGER_SECONDS: Final = 3.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, write the results, print the table; 1 if a system could not be run."""
    options = _parser().parse_args(arguments)
    settings = Settings(
        seconds=options.seconds,
        drain=options.drain,
        seed=options.seed,
        together=options.together,
    )
    chosen = [one for name in options.only or ["all"] for one in _called(name)]
    able, failed = _with_programs(list(dict.fromkeys(chosen)))
    facts = machine.facts(ROOT)
    for one, future in _performed(able, settings, options.directory.resolve()):
        failed += not _written(one, future, settings, facts, options.output)
    if options.output == report.RESULTS:
        report.publish()
    print("\n".join(report.lines(report.load(options.output))))
    return int(failed > 0)


def _performed(
    able: Sequence[tuple[Contestant, Path]], settings: Settings, directory: Path
) -> Iterator[tuple[Contestant, Future[Trial]]]:
    """Run every system, several at a time; yield each result as it is done."""
    stop = threading.Event()
    futures: dict[Future[Trial], Contestant] = {}
    with ThreadPoolExecutor(settings.together) as pool:
        try:
            for one, programs in able:
                folder = directory / one.name
                futures[pool.submit(run_trial, one, programs, folder, settings, stop)] = one
                if len(futures) < settings.together:
                    time.sleep(_STAGGER_SECONDS)  # so that they do not all start at once
            for future in as_completed(futures):
                yield futures[future], future
        except BaseException:
            stop.set()  # each ends what it has started
            pool.shutdown(cancel_futures=True)
            raise


def _called(name: str) -> Sequence[Contestant]:
    return CONTESTANTS if name == "all" else named(name)


def _with_programs(chosen: Sequence[Contestant]) -> tuple[list[tuple[Contestant, Path]], int]:
    """Each with its environment, the slowest first; and how many have none."""
    able: list[tuple[Contestant, Path]] = []
    failed = 0
    for one in sorted(chosen, key=lambda one: one.quick):
        try:
            programs = (
                python_programs(one.peer, one.minimum) if one.peer else Path(sys.executable).parent
            )
        except Absent as reason:
            failed += 1
            _say(f"{one.name}: not run: {reason}")
        else:
            able.append((one, programs))
    return able, failed


def _written(
    contestant: Contestant,
    future: Future[Trial],
    settings: Settings,
    facts: dict[str, str],
    output: Path,
) -> bool:
    try:
        trial = future.result()
    except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
        _say(f"{contestant.name}: failed: {error!r}")
        return False
    report.write(contestant, trial, settings, facts, output)
    _say(f"{contestant.name}: {trial.verdict} in {trial.took:g} s, {trial.exits} exits")
    return True


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m comparison.run", description=__doc__)
    default = Settings()
    known = ", ".join(one.name for one in CONTESTANTS)
    parser.add_argument("--only", type=_names, help=f"with commas, of packhorse, {known}")
    parser.add_argument(
        "--seconds", type=_seconds, default=default.seconds, help="of the schedule, from 60 on"
    )
    parser.add_argument(
        "--drain",
        type=int,
        default=default.drain,
        help="seconds after it for the jobs to come back",
    )
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--together", type=int, default=default.together, help="how many at a time")
    parser.add_argument("--directory", type=Path, default=_WORK, help="where the stores lie")
    parser.add_argument("--output", type=Path, default=report.RESULTS, help="where results go")
    return parser


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if not named(name)]
    if unknown:
        raise argparse.ArgumentTypeError(f"no contender is called {', '.join(unknown)}")
    return names


def _seconds(text: str) -> int:
    if int(text) < _SECONDS_MIN:
        raise argparse.ArgumentTypeError(f"give {_SECONDS_MIN} or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
