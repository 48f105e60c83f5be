# SPDX-License-Identifier: MIT
"""What became of each job that was to be cancelled or run again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import click

from packhorse.cli.exits import ExitCode
from packhorse.cli.render import print_json, print_text
from packhorse.lifecycle import CancelAnswer
from packhorse.stores.requests import RedriveAnswer

__all__ = ["tell_answers"]

_MEANING: Final[Mapping[str, str]] = MappingProxyType(
    {
        CancelAnswer.CANCELLED: "cancelled",
        CancelAnswer.FLAGGED: "running; its worker is told to stop it",
        CancelAnswer.FINISHED: "had finished already; nothing was changed",
        RedriveAnswer.REDRIVEN: "will run again",
        RedriveAnswer.REFUSED: "is ready or running already; nothing was changed",
        RedriveAnswer.CONFLICT: "another job has taken its key; nothing was changed",
        "unknown": "not found",
    }
)
_DONE: Final = frozenset({CancelAnswer.CANCELLED, CancelAnswer.FLAGGED, RedriveAnswer.REDRIVEN})


def tell_answers(answers: Iterable[tuple[str, str]], *, as_json: bool) -> None:
    """Write what became of each job, and leave with the code that fits the worst."""
    told = list(answers)
    if as_json:
        print_json({"results": [{"id": job_id, "answer": answer} for job_id, answer in told]})
    else:
        for job_id, answer in told:
            print_text(f"{job_id}  {_MEANING[answer]}")
    outcomes = {answer for _, answer in told}
    if "unknown" in outcomes:
        raise click.exceptions.Exit(ExitCode.NOTHING_MATCHED)
    if outcomes - _DONE:
        raise click.exceptions.Exit(ExitCode.FAILED)
