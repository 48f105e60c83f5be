# SPDX-License-Identifier: MIT
"""A report every night, and a tick that cleans up."""

from __future__ import annotations

from datetime import date, timedelta
from zoneinfo import ZoneInfo

from packhorse import Context, Packhorse, Reject, RetryPolicy

_ZONE = ZoneInfo("Europe/Berlin")

app = Packhorse("sqlite:///nightly_report.db")
app.queue("reports", retention="30d")  # results stay readable for a month


def sales_of(day: date) -> list[int]:
    """What was sold on a day, in cents; a stand-in for a query of yours."""
    return [day.day * 1_000 + number * 50 for number in range(day.isoweekday())]


@app.task(queue="reports", retry=RetryPolicy(max_retries=5, initial_delay="1m", max_delay="30m"))
def mail_report(ctx: Context, to: str) -> str:
    """Mail the sales of the day before the one the fire was due on, however late it runs."""
    due = ctx.job.scheduled_for
    if due is None:
        raise Reject("a report is made by its schedule: packhorse schedules run nightly")
    day = due.astimezone(_ZONE).date() - timedelta(days=1)
    total = ctx.step("add up", lambda: sum(sales_of(day)))
    return f"{to}: {total / 100:.2f} EUR on {day:%A, %d %B}"


@app.every("1h")
def clear_old_files() -> None:
    """Runs on one worker at a time, however many there are."""


app.schedule(
    "nightly",
    mail_report.call("ada@example.com"),
    cron="0 3 * * *",
    timezone="Europe/Berlin",
    catch_up="all",  # a night without a running worker still gets its report
    jitter="5m",
)
