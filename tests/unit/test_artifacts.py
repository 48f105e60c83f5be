# SPDX-License-Identifier: MIT
"""Places for artifacts: a folder, a bucket, memory; hostile names, broken streams, retention."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from packhorse import Context, Encryption, Packhorse
from packhorse.artifacts import MemoryPlace, Place, PlaceSource, open_place
from packhorse.artifacts.folder import FolderPlace
from packhorse.artifacts.s3 import BucketPlace
from packhorse.core.clock import SystemChance, SystemClock
from packhorse.errors import ArtifactError, ConfigError, UsageError
from packhorse.runtime.services.artifact_sweeper import ArtifactSweeper
from packhorse.runtime.services.service import ServiceContext
from packhorse.testing import make_context, use
from tests.servers.s3 import (
    ACCESS_KEY,
    READER_ACCESS_KEY,
    READER_SECRET_KEY,
    SECRET_KEY,
    s3_server,
)

HOSTILE = ("..", ".", "../../up", "/etc/passwd", "a/b", "a\\b", "nul\0", "%2E%2E", "漢字", " ")


pytestmark = pytest.mark.xdist_group("s3")  # one server is enough


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_server() as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL_S3", address)
        patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        boto3.client("s3").create_bucket(Bucket="kept")
        yield "s3://kept/some/prefix"


@pytest.fixture(params=["memory", "folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    match request.param:
        case "memory":
            yield MemoryPlace("own")
        case "folder":
            yield FolderPlace(tmp_path / "in" / "artifacts", "own")
        case _:
            made = BucketPlace.of_url(request.getfixturevalue("bucket"), f"own{os.getpid()}")
            yield made
            for job_id in made.jobs("", 1_000):
                made.remove(job_id)


def test_every_place_keeps_reads_lists_and_removes(place: Place) -> None:
    large = [b"a" * 1_000_000, b"b" * 1_000_000]
    place.write(f"{place.space}/one/t1", large)
    place.write(f"{place.space}/one/t2", [])
    place.write(f"{place.space}/two/t1", [b"2"])

    with place.read(f"{place.space}/one/t1") as stream:
        assert stream.read() == b"".join(large)
    assert place.jobs("", 10) == ["one", "two"]
    assert (place.jobs("one", 10), place.jobs("", 1), place.jobs("two", 10)) == (
        ["two"],
        ["one"],
        [],
    )
    place.discard(f"{place.space}/one/t2")
    place.discard(f"{place.space}/one/t2")
    place.remove("one")
    place.remove("one")
    assert place.jobs("", 10) == ["two"]
    with pytest.raises(FileNotFoundError):
        place.read(f"{place.space}/one/t1")


def test_a_stream_that_breaks_leaves_nothing(place: Place) -> None:
    def broken() -> Iterator[bytes]:
        yield b"half"
        raise OSError("cut off")

    with pytest.raises(OSError, match="cut off"):
        place.write(f"{place.space}/one/t1", broken())

    with pytest.raises(FileNotFoundError):
        place.read(f"{place.space}/one/t1")


@pytest.mark.parametrize("job_id", HOSTILE)
def test_no_id_of_a_job_leads_out_of_the_folder(tmp_path: Path, job_id: str) -> None:
    place = FolderPlace(tmp_path / "in" / "artifacts", "own")

    place.write(f"own/{job_id}/token", [b"1"])

    [file] = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert file.parent.parent == tmp_path / "in" / "artifacts" / "own"
    assert place.jobs("", 10) == [job_id]
    place.remove(job_id)
    assert place.jobs("", 10) == []


@pytest.mark.parametrize("name", [name for name in HOSTILE if name.isprintable()])
def test_no_name_of_an_artifact_is_part_of_a_path(tmp_path: Path, name: str) -> None:
    app = Packhorse(f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    def export(ctx: Context) -> None:
        ctx.artifacts.put(name, b"1")

    job = export.enqueue()
    app.run(burst=True)

    [artifact] = job.artifacts()
    assert (artifact.name, artifact.read()) == (name, b"1")
    [folder] = [each for each in tmp_path.iterdir() if each.is_dir() and "artifacts" in each.name]
    assert folder == tmp_path / "jobs.db-artifacts"
    app.close()


def test_an_id_that_is_too_long_for_a_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="255"):
        FolderPlace(tmp_path, "own").write(f"own/{'漢' * 100}/token", [b"1"])


def test_where_artifacts_go_without_a_place_of_their_own(tmp_path: Path) -> None:
    def opened(url: str | None, given: str | None = None) -> Place | None:
        return open_place(given, url, str(tmp_path), "label")

    assert isinstance(opened("memory://"), MemoryPlace)
    assert isinstance(opened("sqlite:///jobs.db"), FolderPlace)
    assert isinstance(opened("redis://x", "s3://bucket/prefix"), BucketPlace)
    assert opened("redis://x") is None
    for wrong in ("ftp://x", "s3://", "s3://key:secret@bucket"):
        with pytest.raises(ConfigError) as caught:
            opened("redis://x", wrong)
        assert "secret" not in str(caught.value)


def test_a_put_says_what_it_cannot_take() -> None:
    ctx = make_context()

    for name, data in (
        ("", b"1"),
        ("a\nb", b"1"),
        ("x" * 201, b"1"),
        ("a", 5),
        ("a", io.StringIO("text")),
    ):
        with pytest.raises(UsageError):
            ctx.artifacts.put(name, data)  # type: ignore[arg-type]
    assert ctx.artifacts.put("a", b"1").read() == b"1"


def test_a_bucket_serves_an_app(bucket: str, tmp_path: Path) -> None:
    app = Packhorse(f"sqlite:///{tmp_path}/jobs.db", artifacts=bucket)

    @app.task(max_result_bytes=1_000)
    def export(ctx: Context) -> str:
        ctx.artifacts.put("a", b"1")
        return "x" * 5_000

    job = export.enqueue()
    app.run(burst=True)

    assert job.result() == "x" * 5_000
    assert [each.name for each in job.artifacts()] == ["a", "result"]
    assert all(each.url.startswith("s3://kept/some/prefix/") for each in job.artifacts())
    app.close()


async def test_artifacts_that_may_not_be_removed_are_told_of_and_stop_nothing(
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    space = f"denied{os.getpid()}"
    owner = BucketPlace.of_url(bucket, space)
    for job_id in ("one", "two"):
        owner.write(f"{space}/{job_id}/t", [b"x"])
    reader = BucketPlace.of_url(bucket, space)
    reader._made = boto3.client(
        "s3",
        aws_access_key_id=READER_ACCESS_KEY,
        aws_secret_access_key=READER_SECRET_KEY,
    )

    with pytest.raises(ArtifactError, match=r"job one: AccessDenied") as denied:
        reader.remove("one")
    app = Packhorse(f"sqlite:///{tmp_path}/jobs.db")
    context = ServiceContext(app.store, SystemClock(), SystemChance(), app.bus, "worker")
    tried: list[str] = []

    def remove(job_id: str) -> None:
        tried.append(job_id)
        BucketPlace.remove(reader, job_id)

    monkeypatch.setattr(reader, "remove", remove)
    await ArtifactSweeper(context, PlaceSource(lambda: reader, chosen=True)).run_once()

    assert denied.value.job_id == "one"
    assert sorted(tried) == owner.jobs("", 10) == ["one", "two"]
    [line] = [each for each in caplog.messages if "artifacts of 2 jobs" in each]
    assert "AccessDenied" in line
    app.close()


def test_tests_keep_artifacts_in_memory(tmp_path: Path) -> None:
    app = Packhorse(f"sqlite:///{tmp_path}/jobs.db", artifacts=tmp_path / "artifacts")

    @app.task
    def export(ctx: Context) -> None:
        ctx.artifacts.put("a", b"1")

    with use(app) as tested:
        job = export.enqueue()
        tested.run_jobs()
        assert [each.read() for each in job.artifacts()] == [b"1"]
    assert list(tmp_path.iterdir()) == []


def test_a_result_that_is_to_be_encrypted_does_not_become_an_artifact(tmp_path: Path) -> None:
    app = Packhorse(
        f"sqlite:///{tmp_path}/jobs.db",
        artifacts=tmp_path / "artifacts",
        encryption=Encryption({"k": b"k" * 32}),
    )

    @app.task(max_result_bytes=1_000)
    def export() -> str:
        return "x" * 5_000

    job = export.enqueue()
    app.run(burst=True)

    assert job.info().dead_reason == "rejected"
    assert not (tmp_path / "artifacts").exists()
    app.close()
