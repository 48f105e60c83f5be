# SPDX-License-Identifier: MIT
"""Search for stories that a store tells differently from the reference.

    python -m scripts.search [--stores memory,sqlite,postgres,redis] [--minutes 20] [--seed N]

Test runs replay the same stories each time. This draws new ones, for so many minutes on each store:
round after round of every state machine, each round with a seed of its own. It stops at the first
round that fails; its shortest story and the command that repeats it are the last lines printed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final

from packhorse.core.clock import SystemChance, SystemClock
from scripts.pytest_runs import run_pytest

STORES: Final = ("memory", "sqlite", "postgres", "redis")
#: Stories of each state machine in one round; a round takes a minute or so.
STORIES: Final = 40
_SEEDS: Final = 2**32


def main(arguments: Sequence[str] | None = None) -> int:
    """Search one store after the other; 1 if one of them failed."""
    options = _options(arguments)
    failed = [store for store in options.stores if not searched(store, options)]
    for store in failed:
        print(f"{store}: a story failed; it is printed above", file=sys.stderr)
    return 1 if failed else 0


def searched(store: str, options: argparse.Namespace) -> bool:
    """Whether every round on this store passed."""
    clock = SystemClock()
    deadline = clock.monotonic() + options.minutes * 60
    chance = SystemChance(options.seed)
    rounds = 0
    while rounds == 0 or clock.monotonic() < deadline:
        seed = int(chance.roll() * _SEEDS)
        if not _round_passes(store, seed):
            return False
        rounds += 1
        left_s = max(0.0, deadline - clock.monotonic())
        print(f"{store}: {rounds} rounds passed, {left_s / 60:.1f} minutes left", flush=True)
    return True


def _round_passes(store: str, seed: int) -> bool:
    command = (
        f"tests/conformance/test_{store}.py",
        *(
            "-k",
            "Machine",
            "--conformance",
            "all",
            "-q",
            "-x",
            "-n",
            str(min(2, os.cpu_count() or 1)),
        ),
        *("--timeout", "1800", f"--hypothesis-seed={seed}"),
    )
    run = run_pytest(command, {"PACKHORSE_MACHINE_EXAMPLES": str(STORIES)})
    if run.code:
        print(f"PACKHORSE_MACHINE_EXAMPLES={STORIES} python -m pytest {' '.join(command)}")
    return run.code == 0 and run.passed > 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--stores", type=_stores, default=STORES, help="comma-separated")
    parser.add_argument("--minutes", type=float, default=20.0, help="for each store")
    parser.add_argument("--seed", type=int, default=None, help="repeat the same rounds")
    return parser.parse_args(arguments)


def _stores(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = sorted(set(names) - set(STORES))
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(STORES)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
