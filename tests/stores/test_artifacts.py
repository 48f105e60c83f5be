# SPDX-License-Identifier: MIT
"""Artifacts lie beside the store, and their jobs keep references: the same on every store."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse import Context, Packhorse, RetryPolicy
from packhorse.artifacts import Artifact
from packhorse.core.clock import SystemChance, SystemClock
from packhorse.core.policies.attachments import Attaching
from packhorse.errors import ArtifactError, JobDead, StepRefused
from packhorse.protocol import AnswerStatus, WorkerResponse
from packhorse.runtime.services.artifact_sweeper import ArtifactSweeper
from packhorse.runtime.services.service import ServiceContext
from packhorse.stores.memory import MemoryStore
from packhorse.stores.requests import JobFilter

MakeApp = Callable[..., Packhorse]


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    return tmp_path / "artifacts"


@pytest.fixture
def make_app(store_kind: str, store_url: str, artifacts: Path) -> Iterator[MakeApp]:
    made: list[Packhorse] = []
    memory = MemoryStore()

    def make(**options: Any) -> Packhorse:
        options = {"artifacts": artifacts, **options}
        store = {"store": memory} if store_kind == "memory" else {"url": store_url}
        made.append(Packhorse(**store, **options))
        return made[-1]

    yield make
    for app in made:
        app.close()


def files(folder: Path) -> list[Path]:
    return sorted(each for each in folder.rglob("*") if each.is_file())


@pytest.mark.req("S0-28", "S0-35")
def test_what_a_handler_puts_is_found_by_its_job(make_app: MakeApp, artifacts: Path) -> None:
    app = make_app()

    @app.task
    def export(ctx: Context) -> str:
        source = artifacts.parent / "source"
        source.write_bytes(b"from a file")
        ctx.artifacts.put("file", source)
        ctx.artifacts.put("stream", io.BytesIO(b"from a stream"))
        return ctx.artifacts.put("bytes", b"x" * 100_000).id

    job = export.enqueue()
    app.run(burst=True)

    found = {each.name: each for each in job.artifacts()}
    assert {name: len(each.read()) for name, each in found.items()} == {
        "file": 11,
        "stream": 13,
        "bytes": 100_000,
    }
    one = found["bytes"]
    assert one.id == job.result()
    assert one.digest == "sha256:" + hashlib.sha256(b"x" * 100_000).hexdigest()
    assert (one.size, one.url) == (100_000, files_named(artifacts, one)[0].as_uri())
    response = job.response()
    assert response is not None
    assert response.artifacts == [each.wire() for each in job.artifacts()]


def files_named(folder: Path, artifact: Artifact) -> list[Path]:
    token = artifact.id.rpartition("/")[2]
    return [each for each in files(folder) if each.name == token]


async def test_coroutines_have_twins_that_do_the_same(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app()

    @app.task
    async def export(ctx: Context) -> None:
        await ctx.artifacts.aput("a", b"123")

    job = await export.aenqueue()
    await app.arun(burst=True)

    [artifact] = await job.aartifacts()
    await artifact.asave(tmp_path / "copy")
    assert (await artifact.aread(), (tmp_path / "copy").read_bytes()) == (b"123", b"123")
    response = await job.aresponse()
    assert response is not None
    assert response.artifacts == [artifact.wire()]


@pytest.mark.req("S0-28")
def test_a_large_result_becomes_an_artifact_and_is_read_back(make_app: MakeApp) -> None:
    app = make_app()

    @app.task(max_result_bytes=1_000)
    def count(to: int) -> list[int]:
        return list(range(to))

    @app.task(max_result_bytes=1_000)
    async def acount(to: int) -> list[int]:
        return list(range(to))

    small, large, other = count.enqueue(10), count.enqueue(5_000), acount.enqueue(5_000)
    app.run(burst=True)

    assert small.artifacts() == ()
    assert (large.result(), other.result()) == (list(range(5_000)), list(range(5_000)))
    [artifact] = large.artifacts()
    assert (artifact.name, artifact.size) == ("result", len(artifact.read()))
    record = app.store.run(app.store.inspection.job(large.id))
    assert record is not None
    assert len(record.result or b"") < 400
    response = large.response()
    assert response is not None
    assert (response.outputs, response.artifacts) == ({}, [artifact.wire()])


def test_without_a_place_of_the_apps_own_a_large_result_is_refused(make_app: MakeApp) -> None:
    app = make_app(artifacts=None)

    @app.task(max_result_bytes=1_000)
    def count() -> str:
        return "x" * 2_000

    job = count.enqueue()
    app.run(burst=True)

    with pytest.raises(JobDead, match="place for artifacts"):
        job.result()


def test_a_damaged_or_missing_artifact_is_an_error(make_app: MakeApp, artifacts: Path) -> None:
    app = make_app()

    @app.task
    def export(ctx: Context) -> None:
        ctx.artifacts.put("a", b"right")

    job = export.enqueue()
    app.run(burst=True)
    [artifact] = job.artifacts()
    [path] = files(artifacts)

    path.write_bytes(b"wrong")
    with pytest.raises(ArtifactError, match="damaged"):
        artifact.read()
    with pytest.raises(ArtifactError, match="damaged"):
        artifact.save(artifacts.parent / "copy")
    assert not (artifacts.parent / "copy").exists()
    path.unlink()
    with pytest.raises(ArtifactError, match="gone") as caught:
        artifact.read()
    assert caught.value.job_id == job.id


def test_an_attempt_that_lost_its_job_leaves_nothing_to_see(
    make_app: MakeApp, artifacts: Path
) -> None:
    app, seen = make_app(), []

    @app.task(max_crashes=9)
    def export(ctx: Context) -> None:
        job = ctx._job
        stale = type(job)(**{**_fields(job), "fence": job.fence - 1})
        late = type(ctx.artifacts)(stale, _StaleHost(app, stale), ctx._link.place)
        try:
            late.put("late", b"stale")
        except StepRefused as error:
            seen.append(error.job_id)

    job = export.enqueue()
    app.run(burst=True)

    assert seen == [job.id]
    assert job.artifacts() == ()
    assert files(artifacts) == []


def _fields(job: Any) -> dict[str, Any]:
    return {name: getattr(job, name) for name in job.__struct_fields__}


class _StaleHost:
    """Writes under the fence it was given, as a worker that lost the job does."""

    def __init__(self, app: Packhorse, job: Any) -> None:
        self._app = app
        self._job = job

    def attach(self, values: dict[str, bytes]) -> bool:
        store = self._app.store
        kept = [Attaching(self._job.id, self._job.fence, values)]
        return store.run(store.attachments.attach(kept)) == ("applied",)

    async def aattach(self, values: dict[str, bytes]) -> bool:
        return self.attach(values)


async def test_artifacts_go_with_their_job_and_orphans_too(
    make_app: MakeApp, artifacts: Path
) -> None:
    app = make_app()

    @app.task
    async def export(ctx: Context) -> None:
        await ctx.artifacts.aput("a", b"1")

    kept, gone = await export.aenqueue(), await export.using(tags=["gone"]).aenqueue()
    await app.arun(burst=True)
    place = app.places()
    assert place is not None
    place.write(f"{place.space}/{gone.id}/of-a-crashed-attempt", [b"2"])
    place.write(f"another-store/{gone.id}/token", [b"3"])
    await app.store.arun(app.store.jobs.delete(JobFilter(tag="gone"), limit=10))

    context = ServiceContext(app.store, SystemClock(), SystemChance(), app.bus, "w")
    await ArtifactSweeper(context, app.places).run_once()

    left = {path.read_bytes() for path in files(artifacts)}
    assert left == {b"1", b"3"}
    assert [each.read() for each in await kept.aartifacts()] == [b"1"]


def test_a_name_that_is_put_again_names_the_newest(make_app: MakeApp) -> None:
    app = make_app()

    @app.task
    def export(ctx: Context) -> None:
        ctx.artifacts.put("a", b"old")
        ctx.artifacts.put("a", b"new")

    job = export.enqueue()
    app.run(burst=True)

    assert [each.read() for each in job.artifacts()] == [b"new"]


def test_an_answer_may_list_the_artifacts_of_its_job_only(make_app: MakeApp) -> None:
    app = make_app()

    @app.task(retry=RetryPolicy(max_retries=0))
    def export(ctx: Context, *, own: bool) -> WorkerResponse:
        reference = ctx.artifacts.put("a", b"1").wire() if own else {"id": "space/other/token"}
        return WorkerResponse(status=AnswerStatus.OK, outputs={"n": 1}, artifacts=[reference])

    right, wrong = export.enqueue(own=True), export.enqueue(own=False)
    app.run(burst=True)

    answers = [right.response(), wrong.response()]
    assert [each and each.status for each in answers] == ["ok", "invalid_output"]
    assert right.artifacts()[0].read() == b"1"
