# SPDX-License-Identifier: MIT
"""Change one thing in the code at a time, and see whether a test fails.

    python -m scripts.mutants [--areas worker,consumer] [--mutants 60] [--minutes 60] [--seed N]

Each area is some modules. A seed draws so many mutants of each: those of cosmic-ray's operators,
and statements that only call something, left out. First the tests are run once, to learn which of
them runs which line (`.cache/mutants`; `--map` does it again, for all files or some). Each mutant
is then tried in a copy of the repository by the tests that run its line, until one fails or all
have passed.

What came of each is kept in `faults/results/mutants.json`, so that the next run goes on where this
one ended (`--again` tries the survivors again, `--late` what timed out). The page is
`faults/results/mutants.md`. A mutant that survives is a change that no test notices: either a test
is missing, or the changed code makes no difference. The latter are listed, with the reason, in
`scripts/mutants.toml`; so are changes that were written by hand, which every run tries.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from packhorse.core.clock import SystemClock
from scripts.mutants_judge import BESIDE_FILES, Judge, RedError
from scripts.mutants_map import TestMap, made_map
from scripts.mutants_report import (
    NAMED,
    REPORT,
    Trial,
    by_hand,
    is_equivalent,
    judged,
    keep,
    kept,
    page,
)
from scripts.mutations import Mutant, drawn, mutants, mutated
from scripts.pytest_runs import ROOT

AREAS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "worker": ("src/packhorse/runtime/worker/**/*.py",),
        "supervisor": ("src/packhorse/runtime/supervisor/*.py",),
        "consumer": ("src/packhorse/runtime/consumer/*.py",),
        "submission": (
            "src/packhorse/client/submission.py",
            "src/packhorse/client/backpressure.py",
            "src/packhorse/client/spool/*.py",
            "src/packhorse/client/topics.py",
            "src/packhorse/client/transactions.py",
            "src/packhorse/client/wire.py",
        ),
        "services": ("src/packhorse/runtime/services/*.py",),
    }
)
#: They raise in threads from outside, which hangs where coverage looks on.
NOT_MAPPED: Final = frozenset({"tests/worker/test_threads_that_die.py"})
#: The tests that judge: those about the areas. The first run once to learn what they run.
MAPPED: Final = (
    "tests/worker/test_*.py",
    "tests/supervisor/test_crash_recovery.py",
    "tests/supervisor/test_liveness.py",
    "tests/supervisor/test_telling.py",
    "tests/unit/test_supervisor_*.py",
    "tests/unit/test_consumer*.py",
    "tests/unit/test_alerts_values.py",
    "tests/unit/test_app*.py",
    "tests/unit/test_artifacts.py",
    "tests/unit/test_backpressure.py",
    "tests/unit/test_batch_documents.py",
    "tests/unit/test_context.py",
    "tests/unit/test_contract_running.py",
    "tests/unit/test_declaring.py",
    "tests/unit/test_drainer.py",
    "tests/unit/test_duty.py",
    "tests/unit/test_keys.py",
    "tests/unit/test_limits_running.py",
    "tests/unit/test_name_lengths.py",
    "tests/unit/test_process_fetcher.py",
    "tests/unit/test_spool.py",
    "tests/unit/test_submission.py",
    "tests/unit/test_task.py",
    "tests/unit/test_topics.py",
    "tests/unit/test_unique_jobs.py",
    "tests/unit/test_versions.py",
    "tests/unit/test_wire.py",
    "tests/unit/test_workflow*.py",
    "tests/stores/test_artifacts.py",
    "tests/stores/test_bulk.py",
    "tests/stores/test_consumer_contracts.py",
    "tests/stores/test_encryption.py",
    "tests/stores/test_full_queues.py",
    "tests/stores/test_sealed_records.py",
    "tests/stores/test_tenancy.py",
    "tests/stores/test_topics.py",
    "tests/stores/test_unique_traces.py",
    "tests/stores/test_versions.py",
    "tests/telemetry/test_alerts.py",
    "tests/telemetry/test_otel.py",
    "tests/transactions/test_*.py",
    "tests/web/test_operation*.py",
    "tests/cli/test_schedules.py",
)
TESTS: Final = (*MAPPED, *(f"tests/supervisor/{file}.py" for file in sorted(BESIDE_FILES)))


@dataclass(frozen=True, slots=True)
class Change:
    """A mutant that is to be tried."""

    area: str
    mutant: Mutant
    text: str  #: of its module
    changed: str
    first: str = ""  #: the file of the tests to try first


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the mutants, and write the report; 1 if tests cannot judge."""
    options = _options(arguments)
    found = (str(path.relative_to(ROOT)) for one in MAPPED for path in sorted(ROOT.glob(one)))
    tests = [file for file in found if file not in NOT_MAPPED]
    known = made_map(tests, options.map, options.judges)
    possible = {area: _possible(area) for area in AREAS}
    sample = {area: drawn(found, options.seed) for area, found in possible.items()}
    trials = kept()
    waiting = _changes(sample, trials, options)
    try:
        _try_all(waiting, trials, known, options)
    except RedError as red:
        print(red, file=sys.stderr)
        return 1
    _write(options, possible, trials)
    return 0


def _possible(area: str) -> list[Mutant]:
    files = sorted(path.relative_to(ROOT) for one in AREAS[area] for path in ROOT.glob(one))
    return [mutant for file in files for mutant in mutants(ROOT, file)]


def _changes(
    sample: Mapping[str, Sequence[Mutant]],
    trials: Mapping[str, Trial],
    options: argparse.Namespace,
) -> Iterator[Change]:
    """What is to be tried of so many mutants of each area, by turns; first what is by hand."""
    known = by_hand()

    def is_to_try(key: str) -> bool:
        before = trials.get(key)
        if before is None:
            return True
        if before.outcome == "timed out":
            return bool(options.late)
        return options.again and before.outcome == "survived" and not is_equivalent(before, known)

    yield from (change for change in _by_hand() if is_to_try(change.mutant.key))
    taking = {
        area: _of_area(area, found, trials, is_to_try)
        for area, found in sample.items()
        if area in options.areas
    }
    for _ in range(options.mutants):
        for changes in taking.values():
            for change in itertools.islice(changes, 1):
                if is_to_try(change.mutant.key):
                    yield change


def _by_hand() -> Iterator[Change]:
    for each in by_hand().named:
        text = (ROOT / each["path"]).read_text("utf-8")
        if text.count(each["before"]) != 1:
            raise SystemExit(f"{each['name']}: not once in {each['path']}: {each['before']!r}")
        changed = text.replace(each["before"], each["after"])
        pairs = enumerate(zip(text.splitlines(), changed.splitlines(), strict=False), 1)
        line = next(number for number, (old, new) in pairs if old != new)
        key = f"{NAMED} {each['path']} {each['name']}"
        mutant = Mutant(Path(each["path"]), each["name"], 0, line, key)
        yield Change(NAMED, mutant, text, changed, each.get("tests", ""))


def _of_area(
    area: str,
    found: Sequence[Mutant],
    trials: Mapping[str, Trial],
    is_to_try: Callable[[str], bool],
) -> Iterator[Change]:
    """The mutants of an area that are programs; that is known of those that were tried."""
    for mutant in found:
        text = (ROOT / mutant.path).read_text("utf-8")
        if mutant.key in trials and not is_to_try(mutant.key):
            yield Change(area, mutant, text, text)
            continue
        changed = mutated(text, mutant)
        if changed is not None and changed != text:
            yield Change(area, mutant, text, changed)


def _try_all(
    waiting: Iterator[Change],
    trials: dict[str, Trial],
    known: TestMap,
    options: argparse.Namespace,
) -> None:
    """Try mutants by as many judges as were asked for, while there is time."""
    clock = SystemClock()
    deadline = clock.monotonic() + options.minutes * 60
    lock = threading.Lock()
    errors: list[RedError] = []

    def next_change() -> Change | None:
        with lock:
            return next(waiting, None) if clock.monotonic() < deadline and not errors else None

    def work() -> None:
        try:
            with Judge(known, TESTS, options.seconds) as judge:
                while change := next_change():
                    trial = _tried(judge, change)
                    with lock:
                        trials[trial.key] = trial
                        keep(trials.values())
                    print(trial, flush=True)
        except RedError as red:
            errors.append(red)

    threads = [threading.Thread(target=work) for _ in range(options.judges)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _tried(judge: Judge, change: Change) -> Trial:
    mutant = change.mutant
    outcome, by = judge.outcome(
        mutant.path, mutant.line, change.text, change.changed, first=change.first
    )
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
    options: argparse.Namespace,
    possible: Mapping[str, Sequence[Mutant]],
    trials: Mapping[str, Trial],
) -> None:
    """Write the page about what was tried of the code as it is."""
    keys = {mutant.key for found in possible.values() for mutant in found}
    keys |= {change.mutant.key for change in _by_hand()}
    tried = [trial for trial in trials.values() if trial.key in keys]
    keep(tried)
    numbers = {area: len(found) for area, found in possible.items()}
    text = page(options.seed, options.mutants * len(AREAS), numbers, judged(tried, by_hand()))
    REPORT.write_text(text, encoding="utf-8")
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
    parser.add_argument("--late", action="store_true", help="try again what timed out")
    parser.add_argument("--map", nargs="*", help="learn again what tests run: of files, or all")
    return parser.parse_args(arguments)


def _areas(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = sorted(set(names) - set(AREAS))
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(AREAS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
