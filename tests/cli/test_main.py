# SPDX-License-Identifier: MIT
"""The root command: help, start-up, errors and their exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from packhorse import errors
from packhorse.cli.exits import AppNotLoaded, ExitCode, NothingMatched, exit_code_of
from packhorse.cli.main import COMMANDS, CommandLine, root
from tests.cli.project import SOURCE, Project


def test_help_names_every_command_with_its_line(folder: Path) -> None:
    result = CliRunner().invoke(root, ["--help"])

    assert result.exit_code == 0
    for name, (_, line) in COMMANDS.items():
        assert f"{name} " in result.stdout
        assert line in result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_loaded_and_explains_itself(folder: Path, name: str) -> None:
    result = Project(folder).run(name, "--help")

    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: packhorse {name} ")


#: What no help needs: user code, stores, workers, and the modules that bring them along.
LATE: tuple[str, ...] = (
    *("jobs", "sqlite3", "asyncio", "packhorse.app", "packhorse.stores", "packhorse.insights"),
    *("packhorse.runtime.worker", "packhorse.runtime.supervisor", "packhorse.cli.discovery"),
)
#: Statuses, reasons and priorities are choices of these, and msgspec comes with them.
WITH_WORDS = ("enqueue", "jobs", "dead")


def help_pages(group: click.Group, *words: str) -> Iterator[tuple[str, ...]]:
    yield words
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from help_pages(command, *words, name)
        else:
            yield (*words, name)


#: Shows each page in a process that has imported only the root command; tells what came with it.
SHOW_PAGES = """
import os, sys
from packhorse.cli.main import root
for words, late in {pages}:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        root([*words, "--help"], standalone_mode=False)
        print("imported", words, [name for name in late if name in sys.modules], flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{{words}} has no help")
"""


def unneeded(words: tuple[str, ...]) -> tuple[str, ...]:
    """The modules that this page does without."""
    late = LATE
    if not set(WITH_WORDS) & set(words[:1]):
        late += ("msgspec", "packhorse.core.job")
    if not words:
        late += tuple(place.partition(":")[0] for place, _ in COMMANDS.values())
    return late


@pytest.mark.req("S4-29")
def test_help_imports_neither_user_code_nor_worker_nor_store(folder: Path) -> None:
    (folder / "jobs.py").write_text("raise AssertionError('imported')\n# Packhorse(", "utf-8")
    pages = [(words, unneeded(words)) for words in help_pages(root)]

    output = subprocess.run(
        [sys.executable, "-c", SHOW_PAGES.format(pages=pages)],
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    told = [line for line in output.splitlines() if line.startswith("imported")]
    assert told == [f"imported {words} []" for words, _ in pages]


def test_the_module_and_the_script_are_the_same_command(folder: Path) -> None:
    result = Project(folder).finish("--version")

    assert result.returncode == 0
    assert result.stdout.startswith("packhorse ")
    assert result.stderr == ""


def test_a_mistyped_command_gets_a_suggestion(folder: Path) -> None:
    result = CliRunner().invoke(root, ["wroker"])

    assert result.exit_code == ExitCode.USAGE
    assert "Did you mean 'worker'?" in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.StoreUnavailable("down"), 3),
        (AppNotLoaded("none"), 4),
        (errors.SchemaOutOfDate("old"), 5),
        (errors.JobNotFound("j-1"), 7),
        (NothingMatched("none"), 7),
        (errors.ConfigError("wrong"), 2),
        (errors.ShapeError("wrong"), 2),
        (errors.PayloadError("wrong"), 2),
        (errors.UsageError("wrong"), 2),
        (errors.JobDead("j-1", reason="rejected"), 1),
        (errors.ResultTimeout("j-1", waited_s=1), 1),
        (errors.StoreError("broken"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_error_has_its_exit_code(error: errors.PackhorseError, code: int) -> None:
    assert exit_code_of(error) == code


class Failing(CommandLine):
    """A command line whose every command raises."""

    def __init__(self, error: BaseException) -> None:
        super().__init__("packhorse", commands_at=COMMANDS, params=root.params)
        self.error = error

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        return click.Command(cmd_name, callback=self.fail)

    def fail(self) -> None:
        raise self.error


def test_an_error_is_one_line_with_its_code() -> None:
    result = CliRunner().invoke(Failing(errors.StoreUnavailable("the disk is full")), ["stats"])

    assert result.exit_code == ExitCode.STORE_UNREACHABLE
    assert result.stdout == ""
    assert result.stderr == "Error STORE_UNAVAILABLE: the disk is full\n"


def test_debug_shows_where_an_error_came_from() -> None:
    group = Failing(errors.StoreUnavailable("the disk is full"))

    result = CliRunner().invoke(group, ["--debug", "stats"])

    assert result.exit_code == ExitCode.STORE_UNREACHABLE
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("Error STORE_UNAVAILABLE: the disk is full\n")


def test_an_unexpected_error_shows_its_traceback_and_ends_with_1() -> None:
    result = CliRunner().invoke(Failing(ZeroDivisionError("planted")), ["stats"])

    assert result.exit_code == ExitCode.FAILED
    assert "ZeroDivisionError: planted" in result.stderr
    assert result.stdout == ""


def test_an_interrupt_ends_with_130() -> None:
    result = CliRunner().invoke(Failing(KeyboardInterrupt()), ["stats"])

    assert result.exit_code == ExitCode.INTERRUPTED
    assert "Interrupted." in result.stderr


def test_a_stdout_that_is_closed_is_an_error_in_one_line(project: Project) -> None:
    result = run_with_output(project, ">&-", "queues", "list", "--json")

    assert result.returncode == ExitCode.FAILED
    assert result.stderr.splitlines()[1:] == [
        "Error OUTPUT_FAILED: stdout is closed, so the answer cannot be told; let it go somewhere"
    ]


@pytest.mark.parametrize("arguments", [("jobs", "list", "--json"), ("jobs", "--help"), ("--help",)])
def test_a_stdout_that_is_full_is_an_error_in_one_line(
    project: Project, arguments: tuple[str, ...]
) -> None:
    result = run_with_output(project, ">/dev/full", *arguments)

    assert result.returncode == ExitCode.FAILED
    assert result.stderr.splitlines()[-1] == (
        "Error OUTPUT_FAILED: stdout cannot be written: No space left on device; let it go "
        "somewhere else"
    )
    assert "Traceback" not in result.stderr
    assert "Exception ignored" not in result.stderr


def test_an_oserror_that_is_not_about_stdout_shows_its_traceback() -> None:
    result = CliRunner().invoke(Failing(PermissionError("planted")), ["stats"])

    assert result.exit_code == ExitCode.FAILED
    assert "PermissionError: planted" in result.stderr


def run_with_output(
    project: Project, redirection: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            "sh",
            "-c",
            f'exec "$@" {redirection}',
            "sh",
            sys.executable,
            "-m",
            "packhorse",
            *arguments,
        ],
        cwd=project.folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
