# SPDX-License-Identifier: MIT
"""The pure part of batches: what ends of members, cancels and retries make of their document."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from packhorse.batches.progress import ProgressWatchers
from packhorse.core.batches import (
    BatchDocument,
    batch_group,
    cancel_told,
    cancelled_batch,
    folded_batch,
    put_batch,
)
from packhorse.core.generators import drive
from packhorse.core.job import JobStatus, NewJob
from packhorse.core.policies.journal import JournalLine
from packhorse.errors import ConfigError
from packhorse.runtime.services.batch_folding import BatchFolding
from packhorse.testing import TestApp

_NOW_US = 1_000_000


def _batch(**fields: Any) -> BatchDocument:
    job = NewJob("", "t", b"{}")
    callbacks = {"success": job, "complete": job}
    batch = BatchDocument("b", job, 0, callbacks=callbacks)
    return msgspec.structs.replace(batch, **fields)


def _line(status: JobStatus, was: JobStatus = JobStatus.PROCESSING) -> JournalLine:
    return JournalLine(1, batch_group("b", ""), "j", "i0", status, was)


def test_a_member_that_is_tried_again_is_no_longer_among_the_dead() -> None:
    batch = _batch(single=True, sealed=True, members=1, total=1)
    dead = folded_batch(batch, [_line(JobStatus.DEAD)], _NOW_US).document
    again = folded_batch(dead, [_line(JobStatus.PENDING, JobStatus.DEAD)], _NOW_US).document

    assert (dead.dead, again.dead) == ((0,), ())


def test_a_batch_that_was_cancelled_is_no_success_though_all_of_it_was_done() -> None:
    batch = _batch(single=True, sealed=True, members=1, total=1, stopped="cancelled")

    moved = folded_batch(batch, [_line(JobStatus.COMPLETED)], _NOW_US)

    assert (moved.document.status, moved.document.fired) == ("cancelled", ("complete",))


@pytest.mark.parametrize("size", [60_000, 55_000])
def test_a_batch_that_was_begun_can_be_written_whatever_becomes_of_it(size: int) -> None:
    callbacks = {"success": NewJob("", "t", b"x" * (size * 3 // 4))}
    batch = _batch(callbacks=callbacks, total=10**8, members=10**6)
    lines = [
        msgspec.structs.replace(_line(JobStatus.DEAD), node=f"i{number}")
        for number in range(900_000, 901_000)
    ]
    try:
        put_batch(batch, 0)
    except ConfigError:
        return

    moved = folded_batch(batch, lines, _NOW_US)

    assert len(moved.document.dead) == len(lines)
    put_batch(moved.document, 1)


def test_of_two_cancels_at_once_one_counts_the_members_that_are_gone() -> None:
    batch = _batch(members=600, cancelled=500, ended=3)

    assert cancel_told(batch, (0, 500), 3, _NOW_US).document == batch
    assert cancel_told(batch, (500, 600), 2, _NOW_US).document.ended == 5


@pytest.mark.parametrize("stopped", ["", "error"])
@pytest.mark.parametrize("failed", [0, 1])
def test_a_cancel_changes_nothing_of_a_batch_that_has_ended(stopped: str, failed: int) -> None:
    counts = {"members": 2, "total": 2, "ended": 2, "processed": 2, "failed": failed}
    batch = _batch(**counts, single=True, sealed=True, finished_us=5, stopped=stopped)

    moved = cancelled_batch(batch, _NOW_US)

    assert moved == (batch, ())


def test_lines_of_a_batch_that_is_gone_are_dealt_with(packhorse_app: TestApp) -> None:
    store, group = packhorse_app.store, batch_group("gone", "")
    folding = BatchFolding(ProgressWatchers(), packhorse_app.bus, "w")

    fold = drive(folding.fold(store, group, [_line(JobStatus.COMPLETED)]), store.run)

    assert (fold.line_ids, fold.changes, fold.jobs) == ((1,), (), ())
