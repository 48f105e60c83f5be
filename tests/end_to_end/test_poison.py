# SPDX-License-Identifier: MIT
"""A job that takes its worker down each time is found out, and the others finish."""

from __future__ import annotations

import subprocess
from typing import Final

import pytest

from packhorse import DeadReason, JobDead, JobStatus, Packhorse
from tests.end_to_end.support import World, until
from tests.support.twins import ordinarily_on

EXIT_OF_POISON: Final = 86
#: Once among others, which proves nothing; again, which makes it a suspect; and alone, which is
#: its own limit, see `take_down`.
STARTS: Final = 3
#: On a busy machine a worker may stand still for longer than a shorter lease before it begins.
OPTIONS: Final = ("--lease", "2s", "--concurrency", "4")


class Keeper:
    """Starts a worker again whenever one ends, as a service manager would."""

    def __init__(self, world: World, count: int) -> None:
        self._world = world
        self._workers = [world.worker(*OPTIONS) for _ in range(count)]
        self.codes: list[int] = []

    def look(self) -> None:
        self._workers = [self._kept(worker) for worker in self._workers]

    def _kept(self, worker: subprocess.Popen[str]) -> subprocess.Popen[str]:
        code = worker.poll()
        if code is None:
            return worker
        self.codes.append(code)
        return self._world.worker(*OPTIONS)


@pytest.mark.req("S4-26", "S2-10")
@pytest.mark.parametrize("store", ordinarily_on("sqlite"))
def test_a_job_that_kills_its_worker_ends_dead_and_the_innocent_finish(world: World) -> None:
    with world.app() as app:
        innocent = [app.tasks["nap"].enqueue(0.02) for _ in range(20)]
        poison = app.tasks["take_down"].enqueue()
        innocent += [app.tasks["nap"].enqueue(0.02) for _ in range(20)]
        keeper = Keeper(world, 2)

        until("all", lambda: all_ended(app, keeper, [job.id for job in [*innocent, poison]]))

        assert {job.status() for job in innocent} == {JobStatus.COMPLETED}
        ends = [app.job(job.id).info().finished_at for job in [*innocent, poison]]
        assert max(filter(None, ends)) == ends[-1]  # they did not have to wait for its end
        with pytest.raises(JobDead) as caught:
            poison.result()
        assert caught.value.reason == DeadReason.WORKER_CRASHED
        info = poison.info()
        assert (info.crashes, info.failures) == (STARTS, 0)
        assert len(world.lines("start", poison.id)) == STARTS
        assert [line.error.code for line in poison.history() if line.error] == [
            "WORKER_LOST"
        ] * STARTS
        assert keeper.codes == [EXIT_OF_POISON] * STARTS


def all_ended(app: Packhorse, keeper: Keeper, job_ids: list[str]) -> bool:
    keeper.look()
    return all(app.job(job_id).info().finished_at is not None for job_id in job_ids)
