# SPDX-License-Identifier: MIT
"""What a shell is offered for a name that is half typed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from packhorse import Packhorse
from tests.cli.project import PATIENCE_S, SOURCE, Project


def offered(project: Project, *words: str) -> list[str]:
    """What bash is offered for the last of these words."""
    done = subprocess.run(
        [sys.executable, "-m", "packhorse"],
        cwd=project.folder,
        env={
            **os.environ,
            "PYTHONPATH": str(SOURCE),
            "_PACKHORSE_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(("packhorse", *words)),
            "COMP_CWORD": str(len(words)),
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.split()]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("enqueue", "g"), ["greet"]),
        (("queues", "pause", "m"), ["mail"]),
        (("worker", "-q", "mail,d"), ["mail,default"]),
        (("jobs", "list", "--task", "ex"), ["explode"]),
        (("jobs", "cancel", "--queue", "st"), ["stored"]),
        (("queues", "pause", "--url", "sqlite:///jobs.db", "st"), ["stored"]),
        (("queues", "pause", "--url", "sqlite:///absent.db", "st"), []),
        (("enqueue", "--app", "nothing:here", "g"), []),
    ],
    ids=" ".join,
)
def test_queues_and_tasks_are_offered(
    project: Project, app: Packhorse, words: tuple[str, ...], names: list[str]
) -> None:
    app.tasks["add"].using(queue="stored").enqueue(1)

    assert offered(project, *words) == names
    assert not (project.folder / "absent.db").exists()
