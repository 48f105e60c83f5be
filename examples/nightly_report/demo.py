# SPDX-License-Identifier: MIT
"""A week of nights, one of them with summer time, in virtual time."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.nightly_report.jobs import app, mail_report
from packhorse.testing import use


def main() -> None:
    """Let a week pass, and print what was mailed."""
    with use(app) as tested:
        tested.clock.set(datetime(2026, 3, 26, tzinfo=UTC))
        tested.run_for("7d")
        sys.stdout.write(f"nightly: {app.schedules.get('nightly').words}\n")
        for job in tested.assert_enqueued(mail_report):
            due = job.info().due_at
            sys.stdout.write(f"{due:%d %B %H:%M} UTC  {job.result()}\n")


if __name__ == "__main__":
    main()
