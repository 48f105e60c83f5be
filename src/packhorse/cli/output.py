# SPDX-License-Identifier: MIT
"""When stdout cannot be written: it was closed, or what lies behind it is full."""

from __future__ import annotations

import os
import sys

import click

from packhorse.errors import PackhorseError

__all__ = ["OutputFailed", "lost_output", "require_output"]


class OutputFailed(PackhorseError):
    """What was asked for was done, and nobody can be told."""

    code = "OUTPUT_FAILED"


def require_output() -> None:
    """Refuse a stdout that was closed before we began; click would say nothing, and to nobody."""
    if sys.stdout is None:
        raise OutputFailed("stdout is closed, so the answer cannot be told; let it go somewhere")


def lost_output(error: OSError) -> OutputFailed | None:
    """The same trouble in our words, if writing is what failed; everything is written by click."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code is not click.echo.__code__:
        return None
    _throw_away()
    return OutputFailed(f"stdout cannot be written: {error.strerror}; let it go somewhere else")


def _throw_away() -> None:
    """Let what stdout still holds go nowhere, or the interpreter would stumble over it again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
