# SPDX-License-Identifier: MIT
"""Three orders, one of which is rolled back; a bank that is down; a handler that dies."""

from __future__ import annotations

import contextlib
import sqlite3

from examples.payments import bank
from examples.payments.jobs import FILE, app, place_order, set_up
from packhorse import JobHandle


def main() -> None:
    set_up()
    bank.set_down(down=True)
    jobs = [place_order(order, f"card-{order}", 500 * order) for order in (1, 2)]
    with contextlib.suppress(ValueError):
        place_order(3, "card-3", 0)

    app.run(burst=True, concurrency=1)
    [breaker] = app.insights.breakers()
    print(f"the bank is down: breaker {breaker.state}, {bank.calls()} calls, nothing charged")
    print(f"job of order 2: {jobs[1].explain().codes[0]}")

    bank.set_down(down=False)
    while any(job.status() != "completed" for job in jobs):
        app.run(burst=True, concurrency=1)
    app.run(burst=True)
    with contextlib.closing(sqlite3.connect(FILE)) as connection:
        orders = connection.execute("select number from orders").fetchall()
        payments = connection.execute("select * from payments order by 1").fetchall()
    print(f"orders {orders}, payments {payments}")
    print(f"the bank has charged {len(bank.charges())} cards; order 2 took {_attempts(jobs[1])}")
    app.close()


def _attempts(job: JobHandle[str]) -> str:
    return f"{job.info().failures + 1} attempts"


if __name__ == "__main__":
    main()
