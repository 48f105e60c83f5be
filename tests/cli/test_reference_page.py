# SPDX-License-Identifier: MIT
"""The reference page tells every option and exit code; every command takes its own defaults."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from packhorse.cli.exits import ExitCode
from packhorse.cli.main import root

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "cli.md").read_text("utf-8")


def leaves(group: click.Group, words: str = "packhorse") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, f"{words} {name}")
        else:
            yield f"{words} {name}", command


def section(words: str) -> str:
    """What the page says under the heading of a command."""
    found = re.search(rf"^##+ `{words}\b.*?(?=^## |^### |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no heading for {words}"
    return found[0]


COMMANDS = dict(leaves(root))


@pytest.mark.parametrize("words", COMMANDS)
def test_every_option_is_told_under_its_command(words: str) -> None:
    command, text = COMMANDS[words], section(words)
    options = [name for option in command.params for name in option.opts if name.startswith("-")]

    assert [name for name in options if f"`{name}`" not in text] == []


@pytest.mark.parametrize("words", COMMANDS)
def test_every_text_an_option_has_by_default_is_one_it_takes(words: str) -> None:
    command = COMMANDS[words]
    context = click.Context(command)

    for option in command.params:
        if isinstance(option.default, str):
            option.type_cast_value(context, option.default)


def test_every_exit_code_is_told() -> None:
    table = PAGE[PAGE.index("## Exit codes") : PAGE.index("## JSON")]

    assert [code for code in ExitCode if not re.search(rf"\b{code.value}\b", table)] == []
