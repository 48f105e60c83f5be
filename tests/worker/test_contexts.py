# SPDX-License-Identifier: MIT
"""What a worker gives the contexts of its handlers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from packhorse import Context, JobStatus, Packhorse
from packhorse.runtime.worker.attempt import Attempt
from packhorse.runtime.worker.handlers import HandlerSpec
from packhorse.runtime.worker.processes.child import _AppResources, _ProcessHost
from packhorse.stores.sqlite.transactions import SqliteTransactions
from tests.worker.support import Yard


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


async def test_a_handler_in_a_process_hears_whether_what_it_keeps_was_kept() -> None:
    yard = Yard()
    yard.submit("work")
    attempt = Attempt(yard.claim_by_hand("ann", "work"), cast("HandlerSpec", None), 0)
    none = cast("Any", None)
    host = _ProcessHost(none, attempt, _AppResources(SimpleNamespace(store=yard.store)))

    assert await host.aattach({"a": b"1"})
    assert host.attach({"b": b"2"})
    assert (await host.aask(host.attachments)).values == {"a": b"1", "b": b"2"}

    yard.do(yard.store.leases.leave("ann"))  # so that the job is for others

    assert not await host.aattach({"a": b"3"})
    assert not host.attach({"b": b"3"})
