# SPDX-License-Identifier: MIT
"""The command line of runs that only kill: each store asked for, one report, 1 if a rule broke."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

#: Sentences shown of each rule that was broken; the report has all.
_SHOWN: Final = 10


class _Verdict(Protocol):
    @property
    def clean(self) -> bool: ...
    @property
    def findings(self) -> Mapping[Any, Iterable[str]]: ...


class KillRun(Protocol):
    """What one store came to."""

    @property
    def store(self) -> str: ...
    @property
    def verdict(self) -> _Verdict: ...


F = TypeVar("F", bound=KillRun)


def kill_run(
    name: str,
    stores: Sequence[str],
    run: Callable[..., F],
    told: Callable[[F], str],
    page: Callable[[Sequence[F]], str],
    *,
    kills: int,
    arguments: Sequence[str] | None,
) -> int:
    """Run each store asked for, say in a line what it came to, and write the report `name`.md."""
    parser = argparse.ArgumentParser(prog=f"python -m faults.{name}")
    parser.add_argument("--store", choices=[*stores, "all"], default="all")
    parser.add_argument("--kills", type=int, default=kills)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(__file__).parent / "results",
        help="the folder of the report",
    )
    options = parser.parse_args(arguments)
    found: list[F] = []
    for store in stores if options.store == "all" else (options.store,):
        with tempfile.TemporaryDirectory(prefix=f"packhorse-{name}-") as folder:
            found.append(run(store, Path(folder), kills=options.kills, seed=options.seed))
        sys.stdout.write(_summary(found[-1], told(found[-1])))
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"{name}.md"
    path.write_text(page(found), encoding="utf-8")
    sys.stdout.write(f"written: {path}\n")
    return 0 if all(one.verdict.clean for one in found) else 1


def _summary(found: KillRun, told: str) -> str:
    lines = [f"{found.store}: {told}"]
    for rule, sentences in found.verdict.findings.items():
        lines += [f"  {rule}: {sentence}" for sentence in list(sentences)[:_SHOWN]]
    return "\n".join([*lines, "clean" if found.verdict.clean else "NOT CLEAN", ""])
