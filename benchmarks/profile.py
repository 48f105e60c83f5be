# SPDX-License-Identifier: MIT
"""Where a worker's time goes, job by job: writes results/profile.md.

`python -m benchmarks.profile [--jobs 20000] [--synchronous FULL]`
"""

from __future__ import annotations

import argparse
import pstats
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import hot_path, machine
from benchmarks.hot_path import Parts

_HERE: Final = Path(__file__).resolve().parent
_WORK: Final = _HERE.parent / ".cache" / "benchmarks"
_TOP: Final = 25
_SUBMIT_TOP: Final = 15
#: Drains of which the fastest is kept: the one that was disturbed least.
_DRAINS: Final = 3

#: (calls, calls that are not recursive, own seconds, seconds with callees, callers).
_Entry = tuple[int, int, float, float, dict[tuple[str, int, str], Any]]
_Function = tuple[str, int, str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Profile, and write the page."""
    options = _options(arguments)
    _WORK.mkdir(parents=True, exist_ok=True)
    facts = machine.facts(_WORK)
    with tempfile.TemporaryDirectory(dir=_WORK) as folder:
        text = "\n".join(_page(Path(folder), options.synchronous, options.jobs, facts))
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "profile.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.profile", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--jobs", type=int, default=20_000, help="a multiple of 1,000")
    parser.add_argument("--synchronous", choices=["FULL", "NORMAL"], default="FULL")
    parser.add_argument("--output", type=Path, default=_HERE / "results")
    return parser.parse_args(arguments)


def _page(folder: Path, synchronous: str, jobs: int, facts: dict[str, str]) -> Iterator[str]:
    yield "# Where a worker's time goes"
    yield ""
    yield from (f"- **{name}**: {value}" for name, value in facts.items())
    yield f"- **run**: {jobs:,} no-op jobs, one worker, synchronous {synchronous}"
    yield ""
    drains = [
        hot_path.drain_parts(folder / f"parts{number}.db", synchronous, jobs)
        for number in range(_DRAINS)
    ]
    parts = min(drains, key=lambda one: one.loop + sum(one.owner_plans.values()) + one.owner_rest)
    loop, owner = hot_path.drain_profile(folder / "profile.db", synchronous, jobs)
    yield "## Processor time for each job"
    yield ""
    yield from _part_lines(parts, loop)
    for title, stats in (("the event loop's thread", loop), ("the store's thread", owner)):
        yield ""
        yield f"## Functions by own time, in {title}"
        yield ""
        yield from function_lines(stats, jobs, _TOP)
    with (folder / "lines").open("w", encoding="utf-8") as lines:
        told, _ = hot_path.drain_profile(folder / "lines.db", synchronous, jobs, lines=lines)
    yield ""
    yield "## Functions by own time, in the event loop's thread, with a JSON line per start and end"
    yield ""
    yield from function_lines(told, jobs, _TOP)
    for title, many in (("one at a time", False), ("many", True)):
        stats = hot_path.submit_profile(folder / f"{many}.db", "NORMAL", jobs, many=many)
        yield ""
        yield f"## Functions by own time, submitting {title} (NORMAL)"
        yield ""
        yield from function_lines(stats, jobs, _SUBMIT_TOP)


def _part_lines(parts: Parts, loop: pstats.Stats) -> Iterator[str]:
    owner = sum(parts.owner_plans.values()) + parts.owner_rest
    yield (
        f"{parts.loop + owner:.1f} µs a job, {parts.jobs_per_second:,.0f} jobs a second with start "
        "and stop. The loop's parts are shares of its measured time, by a profiled second drain."
    )
    yield ""
    yield "| Thread | Part | µs a job |"
    yield "| --- | --- | ---: |"
    yield f"| event loop | **all** | **{parts.loop:.1f}** |"
    shares = own_time_by_part(loop)
    total = sum(shares.values()) or 1.0
    for part, seconds in sorted(shares.items(), key=lambda one: -one[1]):
        yield f"| | {part} | {parts.loop * seconds / total:.1f} |"
    yield f"| store | **all** | **{owner:.1f}** |"
    for verb, spent in sorted(parts.owner_plans.items(), key=lambda one: -one[1]):
        yield f"| | {verb} | {spent:.1f} |"
    yield f"| | begin, commit, answers | {parts.owner_rest:.1f} |"


def own_time_by_part(stats: pstats.Stats) -> dict[str, float]:
    """Own seconds by part; what C functions took is their callers'."""
    parts: dict[str, float] = {}
    for (filename, _, _), entry in _entries(stats):
        _, _, own, _, callers = entry
        if filename != "~" or not callers:
            part = hot_path.part_of(filename)
            parts[part] = parts.get(part, 0.0) + own
            continue
        for (caller_file, _, _), (_, _, caller_own, _) in callers.items():
            part = hot_path.part_of(caller_file)
            parts[part] = parts.get(part, 0.0) + caller_own
    return parts


def function_lines(stats: pstats.Stats, jobs: int, top: int) -> Iterator[str]:
    """Times under the profiler: larger than without it, most of all for small functions."""
    yield "| Own µs a job | With callees | Calls a job | Function |"
    yield "| ---: | ---: | ---: | --- |"
    for function, (_, calls, own, cumulative, _) in sorted(
        _entries(stats), key=lambda one: -one[1][2]
    )[:top]:
        yield (
            f"| {own / jobs * 1e6:.2f} | {cumulative / jobs * 1e6:.2f} | {calls / jobs:.2f} "
            f"| `{_name(function)}` |"
        )


def _entries(stats: pstats.Stats) -> list[tuple[_Function, _Entry]]:
    return list(stats.stats.items())  # type: ignore[attr-defined]  # the stubs do not know it


def _name(function: _Function) -> str:
    filename, line, name = function
    if filename == "~":
        return name.strip("<>").replace("built-in method ", "")
    path = Path(filename)
    for anchor in ("packhorse", "benchmarks"):
        if anchor in path.parts:
            at = len(path.parts) - 1 - path.parts[::-1].index(anchor)
            return f"{'/'.join(path.parts[at:])}:{line} {name}"
    return f"{path.parent.name}/{path.name}:{line} {name}"


if __name__ == "__main__":
    sys.exit(main())
