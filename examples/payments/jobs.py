# SPDX-License-Identifier: MIT
"""The app. Orders, payments and jobs lie in one SQLite file; on PostgreSQL it is the same code.

Run a worker for it:  packhorse worker examples.payments.jobs:app
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from examples.payments import bank
from packhorse import Context, JobHandle, Packhorse, RetryPolicy

FILE = "payments.db"
app = Packhorse(f"sqlite:///{FILE}")
app.queue("payments", retry=RetryPolicy(max_retries=5, initial_delay="20ms", max_delay="50ms"))


@app.task(queue="payments")
def take_payment(ctx: Context, order: int, card: str, cents: int) -> str:
    with ctx.breaker("bank", failures=3, window="30s", open_for="1s"):
        # Once its result is kept it is not called again; until then the key makes it one charge.
        receipt = ctx.step("charge", bank.charge, card, cents, ctx.idempotency_key("charge"))
    _stumble(order)
    with ctx.transaction() as tx:
        tx.connection.execute("insert into payments values (?, ?)", (order, receipt))
        send_receipt.using(tx=tx.connection).enqueue(order, receipt)
        tx.complete(receipt)  # the row, the mail and the end of this job, or none of them
    return ""  # not looked at: the job is completed by now


@app.task(queue="payments")
def send_receipt(order: int, receipt: str) -> str:
    return f"{receipt} of order {order} is on its way"


def place_order(order: int, card: str, cents: int) -> JobHandle[str]:
    """Store an order, and the job that takes its payment with it."""
    with sqlite3.connect(FILE) as connection:
        connection.execute("begin immediate")
        connection.execute("insert into orders values (?, ?)", (order, cents))
        job = take_payment.using(tx=connection).enqueue(order, card, cents)
        if cents <= 0:
            raise ValueError("an order costs something")  # and is gone, with its job
    return job


def set_up() -> None:
    app.store.migrate()
    with sqlite3.connect(FILE) as connection:
        connection.execute("create table if not exists orders (number integer, cents integer)")
        connection.execute("create table if not exists payments (number integer, receipt text)")


def _stumble(order: int) -> None:
    """Die after the charge, the first time that order 2 comes by."""
    mark = Path("stumbled")
    if order == 2 and not mark.exists():
        mark.touch()
        raise MemoryError("a bad moment")
