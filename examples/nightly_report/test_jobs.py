# SPDX-License-Identifier: MIT
"""The report's tests: nights pass in virtual time."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from examples.nightly_report import demo
from examples.nightly_report.jobs import mail_report
from packhorse.testing import TestApp


def test_each_night_has_its_report_of_the_day_before(packhorse_app: TestApp) -> None:
    packhorse_app.clock.set(datetime(2026, 6, 1, tzinfo=UTC))

    packhorse_app.run_for("2d")

    results = sorted(job.result() for job in packhorse_app.assert_enqueued(mail_report))
    assert results == [
        "ada@example.com: 10.00 EUR on Monday, 01 June",
        "ada@example.com: 2180.50 EUR on Sunday, 31 May",
    ]


def test_the_demo_shows_a_week(capsys: pytest.CaptureFixture[str]) -> None:
    demo.main()

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8
    assert lines[0].startswith("nightly")
