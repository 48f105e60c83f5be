# SPDX-License-Identifier: MIT
"""Put very many jobs through one worker process, and see whether it grows.

    python -m benchmarks.leaks --jobs 1000000 --store postgres

Among the jobs are retries, timeouts, cancels, threads, progress, and connections that are cut.
Writes `benchmarks/results/leaks.md`, a section per store; exit code 1 if the worker grew.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.leaks.feeding import PORTION, Feeder
from benchmarks.leaks.serving import serving
from benchmarks.leaks.tasks import create_app
from benchmarks.leaks.watching import PER, Findings, Sample, judged, sample

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = ROOT / "benchmarks" / "results" / "leaks.md"
TITLE: Final = "# Does a worker grow?"
#: Looks at the worker in one run.
LOOKS: Final = 50
#: Rows of the table in the report.
ROWS: Final = 11
#: Connections are cut after every so many jobs.
CUT_EVERY: Final = 10 * PORTION
STOP_S: Final = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, write the section, and say what was found; 1 if the worker grew."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--store", choices=["sqlite", "postgres", "redis"], default="sqlite")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="packhorse-leaks-") as folder:
        samples, done = _run(options.store, Path(folder), options.jobs, options.seed)
    findings = judged(samples)
    done += f" It took {time.monotonic() - began:,.0f} s on Python {platform.python_version()}."
    text = _section(options.store, samples, findings, done)
    _write(options.results, options.store, text)
    sys.stdout.write(text)
    return 0 if findings.flat else 1


def _run(store: str, folder: Path, jobs: int, seed: int) -> tuple[list[Sample], str]:
    """What was seen of the worker, and what it was given to do."""
    samples: list[Sample] = []
    with serving(store, folder) as (url, cutter):
        app = create_app(url)
        feeder = Feeder(app, cutter, seed=seed)
        feeder.prepare()
        worker = _started(url, folder)
        look_every = max(PORTION, jobs // LOOKS)
        try:
            while feeder.submitted < jobs and worker.poll() is None:
                feeder.feed(cut_every=CUT_EVERY)
                done = feeder.submitted - feeder.depth()
                if done - (samples[-1].jobs if samples else 0) >= look_every:
                    samples.append(sample(worker.pid, done))
            feeder.drained(lambda: worker.poll() is None)
            samples.append(sample(worker.pid, feeder.submitted))
            worker.terminate()
            code = worker.wait(STOP_S)
        finally:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
            app.close()
    if code:
        raise RuntimeError(f"the worker ended with {code}")
    return samples, (
        f"{feeder.submitted:,} jobs through one worker process: {feeder.retried:,} of them ran "
        f"twice, {feeder.cancelled:,} more were cancelled, and {cutter.cuts:,} connections of the "
        "worker were cut."
    )


def _started(url: str, folder: Path) -> subprocess.Popen[bytes]:
    """The worker, in one process, with its log in the folder."""
    options = ("--in-process", "--no-banner", "--log-level", "error", "--concurrency", "100")
    command = [sys.executable, "-m", "packhorse", "worker", "benchmarks.leaks.tasks:create_app"]
    with (folder / "worker.log").open("wb") as log:
        return subprocess.Popen(
            [*command, *options],
            cwd=ROOT,
            env={**os.environ, "PACKHORSE_URL": url},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _section(store: str, samples: Sequence[Sample], findings: Findings, done: str) -> str:
    step = max(1, len(samples) // ROWS)
    shown = [*samples[:-1:step], samples[-1]]
    rows = [f"| {s.jobs:,} | {s.rss_mib:.1f} | {s.descriptors} | {s.threads} |" for s in shown]
    growth = f"{findings.growth_mib:+.2f} MiB for each {PER:,} jobs after the first"
    lines = [
        f"## {store}",
        "",
        done,
        "",
        f"- memory: {growth} {findings.warm_after:,}",
        f"- file descriptors: {findings.descriptors[0]} to {findings.descriptors[1]}",
        f"- threads: {findings.threads[0]} to {findings.threads[1]}",
        f"- verdict: {findings.verdict}",
        "",
        "| jobs done | MiB resident | file descriptors | threads |",
        "| ---: | ---: | ---: | ---: |",
        *rows,
        "",
    ]
    return "\n".join(lines)


def _write(path: Path, store: str, text: str) -> None:
    """Put the section in its place; those of other stores stay."""
    page = path.read_text(encoding="utf-8") if path.exists() else f"{TITLE}\n"
    found = re.search(rf"^## {store}\n.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    if found is None:
        page = f"{page.rstrip()}\n\n{text}"
    else:
        page = page[: found.start()] + text + page[found.end() :]
    path.write_text(re.sub(r"\n(## )", r"\n\n\1", page).replace("\n\n\n", "\n\n"), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
