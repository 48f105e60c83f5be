# SPDX-License-Identifier: MIT
"""A copy of the repository in which one mutant after the other is tried."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final, Self

from scripts.mutants_map import CHOICE, TestMap
from scripts.mutations import is_in_function
from scripts.pytest_runs import ROOT

_COPIED_NOT: Final = (".venv", ".git", ".cache", ".*_cache", "__pycache__", ".hypothesis")
#: A test may take so many times what it took unchanged, and a run what its tests took together.
_PATIENCE: Final = 6.0
_PATIENCE_MIN_S: Final = 15.0
_RUN_MIN_S: Final = 60.0
_FLAKES_MAX: Final = 3  #: tests that failed once and then passed, until all are believed
_TESTS_FAILED: Final = (1, 2)  #: pytest's exit codes: a test, or an import, has failed
_OPTIONS: Final = ("-q", "-x", "-p", "scripts.mutants_plugin", "-p", "no:randomly")
#: Which tests start processes that run a module; the map sees the process of the test only.
BESIDE: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        "supervisor/exposition": ("test_metrics", "test_probes"),
        "supervisor/probes": ("test_probes", "test_metrics"),
        "supervisor/fleet": ("test_metrics", "test_probes"),
        "supervisor/": ("test_children", "test_stuck", "test_quiet", "test_polite_endings"),
        "worker/processes/child": ("test_process_forks", "test_process_executor"),
        "worker/processes/": ("test_process_pool", "test_process_executor", "test_process_forks"),
        "worker/supervised": ("test_metrics", "test_recycling", "test_stuck"),
        "worker/recycling": ("test_recycling",),
    }
)
BESIDE_FILES: Final = frozenset(file for files in BESIDE.values() for file in files)
_FEWEST: Final = 8  #: tests of one mutant, however long they take


class RedError(Exception):
    """The tests could not judge."""


class Judge:
    """Tries mutants in a copy, with tests that were collected once."""

    def __init__(self, known: TestMap, tests: Sequence[str], seconds: float) -> None:
        self._known = known
        self._seconds = seconds
        self._folder = Path(tempfile.mkdtemp(prefix="packhorse-mutants-"))
        self._copy = self._folder / "copy"
        shutil.copytree(
            ROOT, self._copy, ignore=shutil.ignore_patterns(*_COPIED_NOT), symlinks=True
        )
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(self._copy / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        paths = [str(path.relative_to(ROOT)) for one in tests for path in sorted(ROOT.glob(one))]
        self._server, self._asked, self._answers = self._started(paths)
        self._collected = set(self._answer())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._asked.close()
        self._server.wait(60)
        self._answers.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def outcome(
        self, path: Path, line: int, before: str, after: str, *, first: str = ""
    ) -> tuple[str, str]:
        """`killed`, `timed out` or `survived`, and the test that decided it.

        The tests of the file `first` are tried first, whether or not they are known to run it.
        """
        known = [*self._known.tests_of(str(path), line, before), *self._beside(path)]
        named = sorted(name for name in self._collected if first and name.startswith(first))
        tests = self._chosen(list(dict.fromkeys([*named, *known])))
        if not tests:
            return "survived", "no test runs it"
        file = self._copy / path
        times = file.stat()
        file.write_text(after, "utf-8")
        try:
            for _ in range(_FLAKES_MAX):
                failed, hung = self._run(path, line, before, after, tests)
                if failed is None:
                    return "survived", ""
                if self._run(path, line, before, after, [failed])[0] is not None:
                    return "timed out" if hung else "killed", failed
                tests.remove(failed)  # it failed by chance
        finally:
            file.write_text(before, "utf-8")
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        return "survived", "tests fail by chance"

    def _beside(self, path: Path) -> list[str]:
        """Tests whose processes run the module, which the map does not know."""
        files = next((of for part, of in BESIDE.items() if part in str(path)), ())
        return [name for file in files for name in sorted(self._collected) if f"/{file}.py" in name]

    def _chosen(self, tests: Sequence[str]) -> list[str]:
        """Of tests in the order of their time, as many as one mutant may take."""
        chosen: list[str] = []
        left_s = self._seconds
        for name in tests:
            left_s -= self._known.seconds_of(name)
            if name in self._collected and (left_s > 0 or len(chosen) < _FEWEST):
                chosen.append(name)
        return chosen

    def _limits(self, tests: Sequence[str]) -> list[float]:
        took = (self._known.seconds_of(name) for name in tests)
        return [max(_PATIENCE_MIN_S, _PATIENCE * seconds) for seconds in took]

    def _patience_s(self, tests: Sequence[str]) -> float:
        took = sum(self._known.seconds_of(name) for name in tests)
        return max(_RUN_MIN_S, _PATIENCE * took)

    def _run(
        self, path: Path, line: int, before: str, after: str, tests: list[str]
    ) -> tuple[str | None, bool]:
        """The first test that fails, and whether it hung."""
        if not is_in_function(before, line):
            return self._run_cold(tests)
        request = {
            "module": str(self._copy / path),
            "before": before,
            "after": after,
            "tests": tests,
            "limits": self._limits(tests),
            "patience_s": self._patience_s(tests),
        }
        print(json.dumps(request), file=self._asked, flush=True)
        answer = self._answer()
        if "error" in answer:
            return self._run_cold(tests)
        if answer.get("late"):
            return tests[0], True
        if "changed" not in answer and answer["failed"] is None:
            return tests[0], False  # the process of the tests has ended
        return answer["failed"], bool(answer.get("hung"))

    def _run_cold(self, tests: list[str]) -> tuple[str | None, bool]:
        """Run tests in a new process, which imports the changed module."""
        limits = self._folder / "limits.json"
        limits.write_text(json.dumps(dict(zip(tests, self._limits(tests), strict=True))), "utf-8")
        process = subprocess.Popen(  # noqa: S603 - our own tests
            [
                sys.executable,
                "-m",
                "pytest",
                *_OPTIONS,
                "--tb=line",
                "-p",
                "no:cacheprovider",
                *tests,
            ],
            cwd=self._copy,
            env={**self._environment, "MUTANTS_LIMITS": str(limits)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        try:
            output, _ = process.communicate(timeout=self._patience_s(tests))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return tests[0], True
        if process.returncode == 0:
            return None, False
        if process.returncode not in (*_TESTS_FAILED, 3, 4):
            raise RedError(output[-2000:])
        failed = [line.split()[1] for line in output.splitlines() if line.startswith("FAILED ")]
        named = [name for name in tests if failed and name.startswith(failed[0])]
        return (named or tests)[0], "Timeout (>" in output

    # ---------------------------------------------------------------------------------- server

    def _started(self, paths: Sequence[str]) -> tuple[subprocess.Popen[bytes], IO[str], IO[str]]:
        come, asked = os.pipe()
        answers, go = os.pipe()
        with (self._folder / "log").open("wb") as log:
            server = subprocess.Popen(  # noqa: S603 - our own tests
                [sys.executable, "-m", "pytest", *_OPTIONS, *CHOICE, *paths],
                cwd=self._copy,
                env={**self._environment, "MUTANTS_FDS": f"{come},{go}"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(come, go),
            )
        os.close(come)
        os.close(go)
        return server, os.fdopen(asked, "w", encoding="utf-8"), os.fdopen(answers, encoding="utf-8")

    def _answer(self) -> Any:
        line = self._answers.readline()
        if not line:
            raise RedError((self._folder / "log").read_text("utf-8", "replace")[-2000:])
        return json.loads(line)
