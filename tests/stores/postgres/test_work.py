# SPDX-License-Identifier: MIT
"""How much is said to the server: what is removed stays in an index for a while, so that saying the
same for each job of a crowd costs the square of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import RateRule
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.postgres.plan_transaction import Transaction
from packhorse.stores.postgres.store import PostgresStore
from packhorse.stores.requests import ClaimRequest, Renewal, TaskSettings
from packhorse.stores.sql.statements import Rows
from packhorse.testing.conformance.samples import QUEUE, TASK, new_job

_WORKER: Final = "w"
_LEASE_US: Final = 600 * SECOND_US
_GRANTED: Final = 20
_JOBS: Final = 10 * _GRANTED
#: More than a claim has to say, whatever it finds.
_STATEMENTS_MAX: Final = 30
#: More than upkeep takes, however many limits hold jobs back.
_ROUND_TRIPS_MAX: Final = 12


def test_a_crowd_is_held_back_at_once_and_not_one_by_one(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = RateRule(_GRANTED, 600 * SECOND_US)
    store.run(store.queues.declare_tasks([TaskSettings(TASK, rate=rule)]))
    store.run(store.leases.renew(Renewal(_WORKER, _LEASE_US, (QUEUE,), (TASK,))))
    store.run(store.jobs.submit([new_job() for _ in range(_JOBS)]))
    request = ClaimRequest(_WORKER, (QUEUE,), (TASK,), _JOBS, 60 * SECOND_US)
    said: list[str] = []
    command = Transaction._command

    def noting(transaction: Transaction, text: str, parameters: Any = ()) -> Any:
        said.append(text)
        return command(transaction, text, parameters)

    monkeypatch.setattr(Transaction, "_command", noting)

    assert len(store.run(store.jobs.claim(request)).jobs) == _GRANTED

    assert 0 < len(said) < _STATEMENTS_MAX


def test_limits_that_hold_jobs_back_are_tried_again_all_together(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upkeep does so while every submit, claim and settlement waits for it."""
    store.run(store.queues.declare_tasks([TaskSettings(TASK, concurrency=1)]))
    store.run(store.leases.renew(Renewal(_WORKER, _LEASE_US, (QUEUE,), (TASK,))))
    keys = [f"key {number}" for number in range(_GRANTED)]
    store.run(store.jobs.submit([new_job(concurrency_key=key) for key in keys * 2]))
    request = ClaimRequest(_WORKER, (QUEUE,), (TASK,), _JOBS, 60 * SECOND_US)
    assert len(store.run(store.jobs.claim(request)).jobs) == _GRANTED
    asked: list[int] = []
    ask = Transaction._ask

    def noting(transaction: Transaction, commands: Sequence[Any]) -> Any:
        asked.append(len(commands))
        return ask(transaction, commands)

    monkeypatch.setattr(Transaction, "_ask", noting)

    store.run(store.upkeep.promote(limit=_JOBS))

    assert 0 < len(asked) < _ROUND_TRIPS_MAX
    [(blocked,)] = store.run(Plan("count", _blocked, writes=False))
    assert blocked == 0


def _blocked() -> Steps[list[tuple[int]]]:
    rows: list[tuple[int]] = yield Rows("select count(*) from {jobs} where blocked_by is not null")
    return rows
