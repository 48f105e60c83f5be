# SPDX-License-Identifier: MIT
"""How much is said to the server: what is removed stays in an index for a while, so that saying the
same for each job of a crowd costs the square of it.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import RateRule
from packhorse.stores.postgres.store import PostgresStore
from packhorse.stores.postgres.transaction import Transaction
from packhorse.stores.requests import ClaimRequest, Renewal, TaskSettings
from packhorse.testing.conformance.samples import QUEUE, TASK, new_job

_WORKER: Final = "w"
_LEASE_US: Final = 600 * SECOND_US
_GRANTED: Final = 20
_JOBS: Final = 10 * _GRANTED
#: More than a claim has to say, whatever it finds.
_STATEMENTS_MAX: Final = 30


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
