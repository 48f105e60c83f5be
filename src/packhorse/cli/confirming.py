# SPDX-License-Identifier: MIT
"""Asking before something cannot be taken back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from packhorse.cli.render import note

__all__ = ["confirm", "confirm_options"]

F = TypeVar("F", bound=Callable[..., Any])


def confirm_options(command: F) -> F:
    """--yes and --dry-run."""
    command = click.option("--dry-run", is_flag=True, help="Only say how many it would be.")(
        command
    )
    return click.option("--yes", is_flag=True, help="Do not ask.")(command)


def confirm(question: str, *, yes: bool) -> None:
    """Go on only if the user says so: on a terminal when asked, elsewhere by --yes."""
    if yes:
        return
    if not _somebody_can_answer():
        raise click.UsageError(f"{question} Nobody can be asked here: add --yes to do it.")
    if not _answered(question):
        note("Nothing was changed.")
        raise click.exceptions.Exit(1)


def _answered(question: str) -> bool:
    """The answer; an interrupt is one, where click takes it for a mere no."""
    try:
        return click.confirm(question, err=True)
    except click.Abort as abort:
        note("")  # the question has no end of line yet
        if not isinstance(abort.__context__, KeyboardInterrupt):
            return False
        note("Nothing was changed.")
        raise KeyboardInterrupt from None


def _somebody_can_answer() -> bool:
    return sys.stdin.isatty()
