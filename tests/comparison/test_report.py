# SPDX-License-Identifier: MIT
"""What docs/comparison.md says is what the results say."""

from __future__ import annotations

import msgspec
import pytest

from benchmarks.peers.environments import pinned
from comparison import report
from comparison.catalogue import CONTESTANTS, named


def test_the_table_of_the_page_is_the_one_of_the_results() -> None:
    page = report.PAGE.read_text(encoding="utf-8")

    assert page == report.with_block(page, report.load(report.RESULTS)), (
        "run `python -m comparison.report`"
    )


def test_everybody_has_a_result() -> None:
    assert [one.name for one in report.load(report.RESULTS)] == [one.name for one in CONTESTANTS]


def test_everybody_went_through_the_same_schedule() -> None:
    assert len({one.schedule for one in report.load(report.RESULTS)}) == 1


def test_a_changed_figure_changes_the_page() -> None:
    page = report.PAGE.read_text(encoding="utf-8")
    first, *rest = report.load(report.RESULTS)
    verdict = msgspec.structs.replace(first.trial.verdict, lost=first.trial.verdict.lost + 77)
    trial = msgspec.structs.replace(first.trial, verdict=verdict)

    changed = report.with_block(page, [msgspec.structs.replace(first, trial=trial), *rest])

    assert changed != page


def test_a_page_without_the_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no block"):
        report.with_block("# A page\n", [])


def test_every_peer_is_pinned_and_its_own_package_is_among_the_pins() -> None:
    assert all(one.peer in pinned(one.peer) for one in CONTESTANTS if one.peer)


def test_a_system_is_chosen_with_all_its_settings() -> None:
    assert [one.name for one in named("celery")] == ["celery", "celery-quick"]
    assert [one.name for one in named("celery-quick")] == ["celery-quick"]
    assert len(named("packhorse")) == 6
    assert named("unknown") == []
