# SPDX-License-Identifier: MIT
"""Texts of others on a terminal: a job's id, an error's message."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    """A text that stays on its line, and writes to a terminal nothing that was not meant."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else " " for sign in text)
