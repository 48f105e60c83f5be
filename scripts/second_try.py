# SPDX-License-Identifier: MIT
"""Run the tests, and those few that failed once more, alone.

    python -m scripts.second_try ARGUMENTS OF PYTEST

Some 15,000 tests, hundreds of them with processes and servers, share a machine with each other and
with whatever else runs there. One that a neighbour disturbed passes when it is run again by itself,
after all others; one that found a defect fails again. The first kind is listed at the end: such a
test asks too much of its machine, or there is a race, and either is a defect to mend.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Final

import pytest

#: With more failures than this, something is broken, and nothing is run again.
FAILURES_MAX: Final = 3


class Failures:
    """Notes the tests that failed, also where other processes ran them."""

    def __init__(self) -> None:
        self.tests: dict[str, None] = {}  # in order, each once

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called for each stage of a test: setup, call, teardown."""
        if report.failed:
            self.tests[_without_group(report.nodeid)] = None


def main(arguments: Sequence[str]) -> int:
    """Whether all passed, at once or alone; the exit code of pytest."""
    failures = Failures()
    code = pytest.main(list(arguments), plugins=[failures])
    if code != pytest.ExitCode.TESTS_FAILED or not 0 < len(failures.tests) <= FAILURES_MAX:
        return int(code)
    print(f"\n{len(failures.tests)} failed; once more, alone:", flush=True)
    command = [sys.executable, "-m", "pytest", *failures.tests]
    again = subprocess.run(command, check=False).returncode  # noqa: S603 - our own tests
    if not again:
        print("\nFAILED BESIDE OTHERS, PASSED ALONE (each is a defect of the test or a race):")
        print(*(f"  {test}" for test in failures.tests), sep="\n", flush=True)
    return again


def _without_group(test: str) -> str:
    """A test's own name; pytest-xdist adds `@group` for `--dist loadgroup`."""
    return test.rpartition("@")[0] if test.rfind("@") > test.rfind("]") else test


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
