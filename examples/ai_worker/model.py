# SPDX-License-Identifier: MIT
"""Stands for a language model and a search engine, and counts what they are asked."""

from __future__ import annotations

from typing import NamedTuple


class Usage:
    """How often they were asked, in this process."""

    def __init__(self) -> None:
        self.searches = 0
        self.answers = 0


class Answer(NamedTuple):
    """What it wrote, and what that took."""

    text: str
    tokens: int


usage = Usage()


def search(question: str) -> list[str]:
    usage.searches += 1
    return [f"{question}: see page {page}" for page in (1, 2, 3)]


def write(sources: list[str]) -> Answer:
    usage.answers += 1
    text = "\n".join(["What is known:", *sources])
    return Answer(text, tokens=10 * len(text))
