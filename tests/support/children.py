# SPDX-License-Identifier: MIT
"""Work done at once in threads, in forked children and in interpreters of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

import packhorse

#: Where the package under test lies.
SOURCE: Final = Path(packhorse.__file__).parents[1]
#: How long any of it may take before it counts as hanging.
_PATIENCE_S: Final = 45.0


def in_threads(*work: Callable[[], object]) -> None:
    """Do all of it at once, each in a thread of its own; the first error is raised here."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(work))

    def attempt(one: Callable[[], object]) -> None:
        try:
            barrier.wait(_PATIENCE_S)
            one()
        except BaseException as error:  # noqa: BLE001 - raised by the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=attempt, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    for error in errors:
        raise error


def fork(work: Callable[[], object]) -> int:
    """Start a child that does the work and leaves; `reap` says how it went."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(_PATIENCE_S))  # a child that hangs is a failure, not a hang
        try:
            work()
        except BaseException:  # noqa: BLE001 - told by the exit code
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def reap(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def python(text: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter of its own."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", text, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
