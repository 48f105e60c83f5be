# SPDX-License-Identifier: MIT
"""Ten jobs of one tenant start soon beside a hundred thousand of another, on every store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from packhorse import Packhorse

_MANY: Final = 100_000
_FEW: Final = 10
#: Jobs of one bulk submit.
_PART: Final = 10_000
#: Among so many of the next to start are all of the few: each tenant has every second turn.
_SOON: Final = 2 * _FEW + 4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_few_jobs_of_one_tenant_start_among_a_hundred_thousand_of_another(
    new_app: Callable[[], Packhorse],
) -> None:
    app = new_app()
    started: list[str] = []

    @app.task
    def note(tenant: str) -> None:
        started.append(tenant)

    for _ in range(_MANY // _PART):
        calls = [note.call("big").using(tenant="big") for _ in range(_PART)]
        app.enqueue_many(calls)
    app.run(burst=True, max_jobs=100, concurrency=1)
    started.clear()
    app.enqueue_many([note.call("small").using(tenant="small") for _ in range(_FEW)])

    app.run(burst=True, max_jobs=_SOON, concurrency=1)

    assert started.count("small") == _FEW
