# SPDX-License-Identifier: MIT
"""A disk that is full, or may not be written: said clearly, and nothing is lost."""

from __future__ import annotations

import resource

import pytest

from packhorse import JobStatus, StoreUnavailable
from tests.end_to_end.support import World, ended, until
from tests.end_to_end.tasks import create_app


def test_submitting_without_room_is_refused_and_keeps_all_that_was_accepted(world: World) -> None:
    process = world.start("-m", "tests.end_to_end.programs", "fill_up")
    code = ended(process)
    told, *ids = world.output(process).splitlines()
    assert code == 0, world.output(process)

    burst = ended(world.worker("--burst"))

    assert "disk" in told
    assert "was not stored" in told
    assert "submitting again with the same job_id is safe" in told
    assert burst == 0
    jobs = world.jobs()
    assert sorted(jobs) == sorted(ids)
    assert {record.status for record in jobs.values()} == {JobStatus.COMPLETED}


def test_a_full_disk_is_named_with_what_to_do(world: World) -> None:
    app = create_app(world.url)
    quick = app.tasks["quick"]
    kept = quick.enqueue(1)
    connection = app.store._local.own.runner._connection  # type: ignore[attr-defined]
    (pages,) = connection.execute("pragma page_count").fetchone()
    connection.execute(f"pragma max_page_count = {pages + 2}")

    with pytest.raises(StoreUnavailable, match="disk is full; free some space") as refused:
        app.enqueue_many([quick.call(number) for number in range(1_000)])
    connection.execute(f"pragma max_page_count = {2**30}")
    later = quick.enqueue(2)

    assert refused.value.maybe_stored is False
    assert sorted(world.jobs()) == sorted([kept.id, later.id])
    app.close()


@pytest.mark.req("S3-28", "S0-23")
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="Linux alone can do it to others")
def test_a_worker_whose_disk_fills_up_writes_what_it_did_once_there_is_room(world: World) -> None:
    gate = world.folder / "gate"
    with world.app() as app:
        jobs = [app.tasks["wait_for_file"].enqueue(str(gate)) for _ in range(5)]
        worker = world.worker("--lease", "30s")
        world.heard("start", times=5)

        # No file of the worker's may grow beyond what the store's log has now.
        full = world.file.with_name("jobs.db-wal").stat().st_size
        before = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (full, before[1]))
        gate.touch()
        world.heard("end", times=5)
        until("the worker to tell", lambda: '"store.trouble"' in world.output(worker))
        meanwhile = {job.status() for job in jobs}
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, before)
        results = [job.result(timeout=30) for job in jobs]

        assert meanwhile == {JobStatus.PROCESSING}
        assert [result["fence"] for result in results] == [1] * 5
        assert len(world.lines("start")) == 5
        assert worker.poll() is None
        until("the all-clear", lambda: '"store.recovered"' in world.output(worker))


def test_a_file_that_may_not_be_written_is_said_clearly(world: World) -> None:
    world.file.parent.chmod(0o755)  # another user must be able to enter

    process = world.start("-m", "tests.end_to_end.programs", "read_only")
    code = ended(process)

    told = world.output(process)
    assert code == 0, told
    assert f"SQLite file {world.file}: attempt to write a readonly database" in told
    assert "may not be written by this user" in told
    assert "was not stored" in told
