# SPDX-License-Identifier: MIT
"""The documentation as tests see it: pages, their code blocks, and the commands they show."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: Pages whose blocks are not examples: past decisions, and the requirements as they were given.
NOT_EXAMPLES = (DOCS / "adr", DOCS / "requirements.md")

BLOCK = re.compile(
    r"(?:^<!-- not run:(?P<reason>[^\n]*?)-->\n\s*)?"
    r"^(?P<indent> *)```(?P<language>python|console)\b[^\n]*\n(?P<code>.*?)^(?P=indent)```\s*?$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block; `reason` says why it is not run, None that it is."""

    language: str
    code: str
    line: int
    reason: str | None


def pages() -> list[Path]:
    found = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    return [
        page
        for page in found
        if page.is_file() and not any(page.is_relative_to(other) for other in NOT_EXAMPLES)
    ]


def blocks(text: str) -> Iterator[Block]:
    for match in BLOCK.finditer(text):
        reason = match["reason"]
        yield Block(
            language=match["language"],
            code=textwrap.dedent(match["code"]),
            line=text.count("\n", 0, match.start("code")) + 1,
            reason=reason if reason is None else reason.strip(),
        )


def shown_commands(block: Block) -> Iterator[str]:
    """What follows `$ packhorse` in a console block, continuation lines joined."""
    for line in block.code.replace("\\\n", " ").splitlines():
        if line.startswith("$ packhorse"):
            yield line.removeprefix("$ packhorse").strip()


def root_command() -> click.Group:
    """The group behind the `packhorse` script, however its `main` wraps it."""
    from packhorse.cli import main as module

    return next(value for value in vars(module).values() if isinstance(value, click.Group))


def commands(group: click.Group, path: str = "") -> Iterator[str]:
    """Every command below `group`, by the words that call it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        words = f"{path} {name}".strip()
        yield words
        if isinstance(command, click.Group):
            yield from commands(command, words)
