# SPDX-License-Identifier: MIT
"""Every example in the documentation runs, and every command it shows exists."""

from __future__ import annotations

import ast
import asyncio
import inspect
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest

from tests.docs.pages import ROOT, Block, blocks, pages, root_command, shown_commands


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_the_examples_of_a_page_run_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A real module, because dataclasses and type hints look theirs up by name.
    module = ModuleType("documentation")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "jobs", module)  # where a page calls its first lines so
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PACKHORSE_URL", raising=False)

    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language == "python" and block.reason is None:
            run(block, page, module)


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_an_example_that_is_not_run_says_why(page: Path) -> None:
    found = blocks(page.read_text(encoding="utf-8"))
    silent = [block.line for block in found if block.reason == ""]

    assert silent == [], f"{page}: write <!-- not run: the reason --> before these lines"


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_command_a_page_shows_exists(page: Path) -> None:
    wrong = [
        f"line {block.line}: packhorse {line}: {problem}"
        for block in blocks(page.read_text(encoding="utf-8"))
        if block.language == "console"
        for line in shown_commands(block)
        for problem in problems(line, root_command())
    ]

    assert wrong == []


def run(block: Block, page: Path, module: ModuleType) -> None:
    """Run one block as the page shows it; a top-level `await` gets a loop."""
    padded = "\n" * (block.line - 1) + block.code  # so that tracebacks name the page's lines
    code = compile(padded, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(code, vars(module)))
    else:
        exec(code, vars(module))


def problems(line: str, root: click.Group) -> Iterator[str]:
    """What is wrong with one command line: an unknown word, or an unknown option."""
    command: click.Command = root
    options = {"--help", "--version"}
    for word in shlex.split(line, comments=True):
        options |= {option for given in command.params for option in given.opts}
        options |= {option for given in command.params for option in given.secondary_opts}
        if word in {"|", "&", "&&", ">", ";"}:
            return
        if word.startswith("--"):
            if word.partition("=")[0] not in options:
                yield f"no option {word}"
        elif isinstance(command, click.Group) and not word.startswith("-"):
            found = command.get_command(click.Context(command), word)
            if found is None:
                yield f"no command {word}"
                return
            command = found
