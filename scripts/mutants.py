# SPDX-License-Identifier: MIT
"""Change one thing in the code at a time, and see whether a test fails.

    python -m scripts.mutants [--areas worker,consumer] [--mutants 60] [--minutes 60] [--seed N]

Each area is some modules. A seed draws so many mutants of each: those of cosmic-ray's operators,
and statements that only call something, left out. First the tests are run once, to learn which of
them runs which line (`.cache/mutants`; `--map` does it again). Each mutant is then tried in a copy
of the repository by the tests that run its line, until one fails or all have passed.

What came of each is kept in `faults/results/mutants.json`, so that the next run goes on where this
one ended (`--again` tries the survivors again); the page is `faults/results/mutants.md`. A mutant
that survives is a change that no test notices: either a test is missing, or the changed code makes
no difference. The latter are listed, with the reason, in `scripts/mutants.toml`; so are changes
that somebody wrote by hand, which every run tries.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import Final

from packhorse.core.clock import SystemClock
from scripts.mutants_judge import BESIDE_FILES, Judge, RedError
from scripts.mutants_map import TestMap, made_map
from scripts.mutants_report import NAMED, REPORT, Trial, by_hand, judged, keep, kept, page
from scripts.mutations import Mutant, drawn, mutants, mutated
from scripts.pytest_runs import ROOT

__all__ = ["AREAS", "TESTS", "main"]

AREAS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "worker": ("src/packhorse/runtime/worker/**/*.py",),
        "supervisor": ("src/packhorse/runtime/supervisor/*.py",),
        "consumer": ("src/packhorse/runtime/consumer/*.py",),
        "submission": (
            "src/packhorse/client/submission.py",
            "src/packhorse/client/backpressure.py",
            "src/packhorse/client/publishing.py",
            "src/packhorse/client/wire.py",
        ),
        "services": ("src/packhorse/runtime/services/*.py",),
    }
)
#: The tests that judge: those about the areas. The first run once to learn what they run.
MAPPED: Final = (
    "tests/worker/test_*.py",
    "tests/supervisor/test_crash_recovery.py",
    "tests/supervisor/test_liveness.py",
    "tests/unit/test_supervisor_*.py",
    "tests/unit/test_consumer*.py",
    "tests/unit/test_app*.py",
    "tests/unit/test_backpressure.py",
    "tests/unit/test_context.py",
    "tests/unit/test_contract_running.py",
    "tests/unit/test_declaring.py",
    "tests/unit/test_limits_running.py",
    "tests/unit/test_task.py",
    "tests/unit/test_topics.py",
    "tests/unit/test_unique_jobs.py",
    "tests/unit/test_wire.py",
    "tests/stores/test_bulk.py",
    "tests/telemetry/test_alerts.py",
)
TESTS: Final = (*MAPPED, *(f"tests/supervisor/{file}.py" for file in sorted(BESIDE_FILES)))


@dataclass(frozen=True, slots=True)
class Change:
    """A mutant that is to be tried."""

    area: str
    mutant: Mutant
    text: str  #: of its module
    changed: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the mutants, and write the report; 1 if tests cannot judge."""
    options = _options(arguments)
    tests = [str(path.relative_to(ROOT)) for one in MAPPED for path in sorted(ROOT.glob(one))]
    known = made_map(tests, again=options.map)
    possible = {area: _possible(area) for area in AREAS}
    sample = {area: drawn(found, options.seed) for area, found in possible.items()}
    changes = list(_changes(sample, options.mutants))
    trials = kept()
    waiting = [
        change
        for change in changes
        if change.area in (*options.areas, NAMED)
        and _is_to_try(trials, change, again=options.again)
    ]
    print(f"{len(waiting)} mutants to try", flush=True)
    try:
        _try_all(waiting, trials, known, options)
    except RedError as red:
        print(red, file=sys.stderr)
        return 1
    _write(options.seed, possible, trials, changes)
    return 0


def _possible(area: str) -> list[Mutant]:
    files = sorted(path.relative_to(ROOT) for one in AREAS[area] for path in ROOT.glob(one))
    return [mutant for file in files for mutant in mutants(ROOT, file)]


def _changes(sample: Mapping[str, Sequence[Mutant]], number: int) -> Iterator[Change]:
    """So many changes of each area, by turns, after those that are written by hand."""
    for each in by_hand().named:
        text = (ROOT / each["path"]).read_text("utf-8")
        if text.count(each["before"]) != 1:
            raise SystemExit(f"{each['name']}: not once in {each['path']}: {each['before']!r}")
        line = text[: text.index(each["before"])].count("\n") + 1
        key = f"{NAMED} {each['path']} {each['name']}"
        mutant = Mutant(Path(each["path"]), each["name"], 0, line, key)
        yield Change(NAMED, mutant, text, text.replace(each["before"], each["after"]))
    each_area = {area: _of_area(area, found) for area, found in sample.items()}
    for _ in range(number):
        for changes in each_area.values():
            yield from (change for change in [next(changes, None)] if change is not None)


def _of_area(area: str, found: Sequence[Mutant]) -> Iterator[Change]:
    for mutant in found:
        text = (ROOT / mutant.path).read_text("utf-8")
        changed = mutated(text, mutant)
        if changed is not None and changed != text:
            yield Change(area, mutant, text, changed)


def _is_to_try(trials: Mapping[str, Trial], change: Change, *, again: bool) -> bool:
    trial = trials.get(change.mutant.key)
    return trial is None or (again and trial.outcome == "survived")


def _try_all(
    waiting: Sequence[Change],
    trials: dict[str, Trial],
    known: TestMap,
    options: argparse.Namespace,
) -> None:
    """Try mutants by as many judges as were asked for, while there is time."""
    clock = SystemClock()
    deadline = clock.monotonic() + options.minutes * 60
    queue: SimpleQueue[Change] = SimpleQueue()
    for change in waiting:
        queue.put(change)
    lock = threading.Lock()
    errors: list[RedError] = []

    def work() -> None:
        try:
            with Judge(known, TESTS, options.seconds) as judge:
                while clock.monotonic() < deadline and not errors:
                    change = queue.get_nowait()
                    trial = _tried(judge, change)
                    with lock:
                        trials[change.mutant.key] = trial
                        keep(trials.values())
                        print(
                            f"{trial.outcome}: {trial.path}:{trial.line} -{trial.before} "
                            f"+{trial.after} ({trial.by})",
                            flush=True,
                        )
        except Empty:
            pass
        except RedError as red:
            errors.append(red)

    threads = [threading.Thread(target=work) for _ in range(min(options.judges, len(waiting)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _tried(judge: Judge, change: Change) -> Trial:
    mutant = change.mutant
    outcome, by = judge.outcome(mutant.path, mutant.line, change.text, change.changed)
    before, after = _difference(change.text, change.changed)
    return Trial(
        area=change.area,
        path=str(mutant.path),
        line=mutant.line,
        operator=mutant.operator,
        key=mutant.key,
        before=before,
        after=after,
        outcome=outcome,
        by=by,
    )


def _difference(before: str, after: str) -> tuple[str, str]:
    """The first line that differs, as it was and as it is."""
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    return next(((old.strip(), new.strip()) for old, new in pairs if old != new), ("", ""))


def _write(
    seed: int,
    possible: Mapping[str, Sequence[Mutant]],
    trials: Mapping[str, Trial],
    changes: Sequence[Change],
) -> None:
    """Write the page about the sample as it is drawn from the code of today."""
    tried = [trials[each.mutant.key] for each in changes if each.mutant.key in trials]
    keep(tried)
    numbers = {area: len(found) for area, found in possible.items()}
    drawn_number = sum(change.area != NAMED for change in changes)
    REPORT.write_text(page(seed, drawn_number, numbers, judged(tried, by_hand())), encoding="utf-8")
    print(f"written to {REPORT.relative_to(ROOT)}")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--areas", type=_areas, default=tuple(AREAS), help="comma-separated")
    parser.add_argument("--mutants", type=int, default=60, help="of each area, at most")
    parser.add_argument("--minutes", type=float, default=60.0, help="for all of it")
    parser.add_argument("--seconds", type=float, default=90.0, help="of tests for one mutant")
    parser.add_argument("--seed", type=int, default=1, help="draws the mutants")
    parser.add_argument("--judges", type=int, default=2, help="mutants tried at the same time")
    parser.add_argument("--again", action="store_true", help="try survivors again")
    parser.add_argument("--map", action="store_true", help="learn again what the tests run")
    return parser.parse_args(arguments)


def _areas(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = sorted(set(names) - set(AREAS))
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(AREAS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
