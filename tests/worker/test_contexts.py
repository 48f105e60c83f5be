# SPDX-License-Identifier: MIT
"""What a worker gives the contexts of its handlers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from packhorse import Context, JobStatus, Packhorse
from packhorse.stores.sqlite.transactions import SqliteTransactions


def test_a_transaction_is_begun_for_as_long_as_the_lease_of_its_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Packhorse(f"sqlite:///{tmp_path}/jobs.db")
    leases: list[float] = []
    begin = SqliteTransactions.begin

    def noted(transactions: SqliteTransactions, lease_s: float) -> Any:
        leases.append(lease_s)
        return begin(transactions, lease_s)

    monkeypatch.setattr(SqliteTransactions, "begin", noted)

    @app.task
    def book(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.complete(None)

    job = book.enqueue()
    app.run(burst=True, handle_signals=False, lease="42.5s")

    assert job.status() is JobStatus.COMPLETED
    assert leases == [42.5]
    app.close()
