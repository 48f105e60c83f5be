# SPDX-License-Identifier: MIT
"""A batch whose worker is killed in the middle of a job: no item that was kept runs again."""

from __future__ import annotations

from typing import Final

import pytest

from tests.end_to_end.support import World, until
from tests.support.twins import ordinarily_on

OPTIONS: Final = ("--lease", "0.5s", "--concurrency", "1")


@pytest.mark.parametrize("store", ordinarily_on("sqlite", "redis"))
def test_an_item_that_was_kept_is_not_repeated_when_its_worker_is_killed(world: World) -> None:
    with world.app() as app:
        batch = app.batch(app.tasks["pack"], range(10), batch_size=10)
        worker = world.worker(*OPTIONS)

        def ended() -> bool:
            nonlocal worker
            if worker.poll() is not None:  # as a service manager would
                worker = world.worker(*OPTIONS)
            return batch.progress().status == "completed"

        until("the batch", ended)

        # Only the one that was interrupted runs again.
        packed = [int(line.note) for line in world.lines("packed")]
        assert packed == [0, 1, 2, 3, 4, 5, 6, 6, 7, 8, 9]
        assert list(batch.results()) == list(range(10))
        assert batch.progress().succeeded == 10
