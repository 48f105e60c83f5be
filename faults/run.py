# SPDX-License-Identifier: MIT
"""Disturb real workers on real stores, and judge what came of it: python -m faults.run.

Exit code 1 if a rule found anything; what Redis loses at `everysec` is measured, not judged.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from faults import report
from faults.plan import Plan
from faults.records import RECORDS_VARIABLE
from faults.rig import run_rig
from faults.stores.opening import STORES

_RESULTS: Final = Path(__file__).resolve().parent / "results"
#: The one whose losses are only counted.
_MEASURED: Final = "redis-everysec"
_QUICK_FAULTS: Final = 25


def main(arguments: Sequence[str] | None = None) -> int:
    """Run each store asked for, write its report, print a summary."""
    options = _parser().parse_args(arguments)
    stores = STORES if options.store == "all" else (options.store,)
    clean = [_run(store, options) for store in stores]
    return 0 if all(clean) else 1


def _run(store: str, options: argparse.Namespace) -> bool:
    plan = Plan(
        store,
        faults=_QUICK_FAULTS if options.quick else options.faults,
        seed=options.seed,
        lease_s=options.lease,
        only=tuple(options.only),
    )
    with tempfile.TemporaryDirectory(prefix="packhorse-faults-") as passing:
        folder = Path(passing) if options.keep is None else options.keep / store
        os.environ[RECORDS_VARIABLE] = str(folder / "records")  # the rig writes down what it does
        found = run_rig(folder, plan)
    sys.stdout.write("\n".join(report.lines(found)) + "\n")
    for path in report.write(found, options.output):
        sys.stdout.write(f"written: {path}\n")
    return found.verdict.clean or store == _MEASURED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", choices=[*STORES, "all"], default="all")
    parser.add_argument("--faults", type=int, default=500, help="how many; 500 take ten minutes")
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK_FAULTS} faults")
    parser.add_argument("--seed", type=int, default=1, help="of all chance")
    parser.add_argument("--lease", type=float, default=2.0, help="in seconds")
    parser.add_argument(
        "--only", action="append", default=[], help="kinds of fault with this in their name"
    )
    parser.add_argument("--keep", type=Path, help="a new folder for records and logs; kept")
    parser.add_argument("--output", type=Path, default=_RESULTS, help="where reports go")
    return parser


def _leave(number: int, _frame: object) -> NoReturn:
    """End the workers when a signal ends the rig: they would outlive it otherwise."""
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _leave)
    sys.exit(main())
