# SPDX-License-Identifier: MIT
"""Runs of pytest by other programs, and what came of each in one line."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

ROOT: Final = Path(__file__).resolve().parents[1]
#: How long one run may take; a suite against one server takes some minutes.
PATIENCE_S: Final = 3600


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one run."""

    code: int  #: pytest's exit code
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        word = "passed" if self.code == 0 else f"NOT PASSED (exit code {self.code})"
        return (
            f"{word}: {self.passed} passed, {self.failed} failed, {self.skipped} skipped "
            f"in {self.seconds:.0f} s"
        )


def run_pytest(options: Sequence[str], environment: Mapping[str, str]) -> Run:
    """Run pytest from the root; it prints as it goes. An empty variable is one that is not set."""
    variables = {**os.environ, **environment}
    variables = {name: value for name, value in variables.items() if value}
    with tempfile.TemporaryDirectory(prefix="packhorse-run-") as folder:
        report = Path(folder) / "report.xml"
        try:
            code = subprocess.run(  # noqa: S603 - our own tests
                [sys.executable, "-m", "pytest", *options, f"--junit-xml={report}"],
                cwd=ROOT,
                env=variables,
                check=False,
                timeout=PATIENCE_S,
            ).returncode
        except subprocess.TimeoutExpired:
            return Run(code=124, seconds=PATIENCE_S)
        return _counted(code, report)


def _counted(code: int, report: Path) -> Run:
    if not report.exists():
        return Run(code)
    suites = ET.parse(report).getroot().iter("testsuite")  # noqa: S314 - pytest's own
    totals: dict[str, float] = dict.fromkeys(("tests", "failures", "errors", "skipped", "time"), 0)
    for suite in suites:
        for name in totals:
            totals[name] += float(suite.get(name, 0))
    failed = int(totals["failures"] + totals["errors"])
    skipped = int(totals["skipped"])
    passed = int(totals["tests"]) - failed - skipped
    return Run(code, passed, failed, skipped, totals["time"])
