# SPDX-License-Identifier: MIT
"""Put artifacts, find them, and read them back, with their digests checked.

The bytes are written first, under a new token; then the reference is attached to the job, under its
fence. So a stale attempt, or one that crashed between the two, leaves bytes without a reference,
which are removed with the job.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, BinaryIO, Final, Protocol, TypeVar

import msgspec

from packhorse.artifacts.locations import CHUNK_BYTES, Place, PlaceSource
from packhorse.core.clock import new_id
from packhorse.core.job import Job
from packhorse.errors import ArtifactError, ConfigError, StepRefused, UsageError
from packhorse.protocol import WorkerResponse

T = TypeVar("T")

#: A longer result is refused, also as an artifact.
RESULT_ARTIFACT_BYTES_MAX: Final = 256 * 1024 * 1024
_NAME_LENGTH_MAX: Final = 200
#: Names of attachments that are references to artifacts begin with it.
_PREFIX: Final = "artifact:"
#: The key of the reference that replaces a result that became an artifact.
_RESULT: Final = "packhorse.result_artifact"


class Artifact(msgspec.Struct, frozen=True):
    """A reference to bytes that are kept beside the store."""

    id: str
    name: str
    url: str
    digest: str  #: "sha256:" and 64 hexadecimal digits
    size: int  #: bytes
    place: Place

    def wire(self) -> dict[str, Any]:
        """Return it as an entry of a response's `artifacts`."""
        return {name: getattr(self, name) for name in ("id", "name", "url", "digest", "size")}

    def read(self) -> bytes:
        """Read all of it; `ArtifactError` if it is gone, or differs from what was put."""
        return b"".join(self._chunks())

    async def aread(self) -> bytes:
        """As `read`, without blocking the event loop."""
        return await _in_thread(self.read)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, which appears once all of it was read and checked."""
        from pathlib import Path  # noqa: PLC0415 - slow to import, and few need it

        target = Path(path)
        part = target.with_name(f".{target.name}.{new_id()}.part")
        try:
            with part.open("xb") as file:
                file.writelines(self._chunks())
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)

    async def asave(self, path: str | os.PathLike[str]) -> None:
        """As `save`, without blocking the event loop."""
        await _in_thread(self.save, path)

    def _chunks(self) -> Iterator[bytes]:
        job_id = _job_of(self.id)
        digest, size = _sha256(), 0
        try:
            with self.place.read(self.id) as stream:
                while chunk := stream.read(CHUNK_BYTES):
                    digest.update(chunk)
                    size += len(chunk)
                    yield chunk
        except FileNotFoundError as error:
            raise ArtifactError(
                f"artifact {self.name!r} of job {job_id} is gone: {self.url} is not there",
                job_id=job_id,
            ) from error
        if (_named(digest), size) != (self.digest, self.size):
            raise ArtifactError(
                f"artifact {self.name!r} of job {job_id} is damaged: {self.url} has {size} bytes "
                f"of digest {_named(digest)}, and {self.size} of {self.digest} were put",
                job_id=job_id,
            )


class _Kept(msgspec.Struct, frozen=True):
    """A reference as it is attached to its job."""

    id: str
    digest: str
    size: int


_KEPT: Final = msgspec.json.Decoder(_Kept)


class _Keeper(Protocol):
    """What artifacts ask of the host of an attempt."""

    def attach(self, values: dict[str, bytes]) -> bool: ...
    def aattach(self, values: dict[str, bytes]) -> Awaitable[bool]: ...


class Artifacts:
    """`ctx.artifacts`: keep large values beside the store, and references to them with the job."""

    __slots__ = ("_host", "_job", "_place")

    def __init__(self, job: Job, host: _Keeper, place: Place | None) -> None:
        self._job = job
        self._host = host
        self._place = place

    def put(self, name: str, data: bytes | str | os.PathLike[str] | BinaryIO) -> Artifact:
        """Keep bytes, the file at a path, or what a binary stream has left, under a name.

        When it returns, bytes and reference survive a crash. Putting a name again replaces it.
        `StepRefused`: another worker may hold the job by now, and nothing was stored.
        """
        artifact = self._written(name, data)
        # If that raises, the reference may have been stored: keep the bytes.
        return self._settled(artifact, held=self._host.attach(_entry(artifact)))

    async def aput(self, name: str, data: bytes | str | os.PathLike[str] | BinaryIO) -> Artifact:
        """As `put`, without blocking the event loop."""
        artifact = await _in_thread(self._written, name, data)
        held = await self._host.aattach(_entry(artifact))
        return self._settled(artifact, held=held)

    def _written(self, name: str, data: object) -> Artifact:
        _check_name(name)
        return _write(self._place, self._job.id, name, data)

    def _settled(self, artifact: Artifact, *, held: bool) -> Artifact:
        if held:
            return artifact
        artifact.place.discard(artifact.id)
        raise StepRefused(
            f"job {self._job.id} is held by another worker by now, or is over: artifact "
            f"{artifact.name!r} was not kept; stop here",
            job_id=self._job.id,
        )


def artifacts_of(values: Mapping[str, bytes], places: PlaceSource) -> tuple[Artifact, ...]:
    """Return the artifacts among the attachments of a job, sorted by name."""
    return tuple(
        _bound(_KEPT.decode(value), name.removeprefix(_PREFIX), places())
        for name, value in sorted(values.items())
        if name.startswith(_PREFIX)
    )


def with_artifacts(response: WorkerResponse, artifacts: tuple[Artifact, ...]) -> WorkerResponse:
    """Return the response with these artifacts in its list."""
    listed = [each.wire() for each in artifacts]
    return msgspec.structs.replace(response, artifacts=listed) if listed else response


def moved_result(place: Place | None, job_id: str, result: str) -> str:
    """Store a result as an artifact; return the reference that replaces it."""
    artifact = _write(place, job_id, "result", result.encode())
    kept = _Kept(artifact.id, artifact.digest, artifact.size)
    return msgspec.json.encode({_RESULT: kept}).decode()


def result_artifact(job_id: str, result: bytes | None, places: PlaceSource) -> Artifact | None:
    """Return the artifact that a result became; None if the result is stored itself."""
    if result is None or not result.startswith(f'{{"{_RESULT}":'.encode()):
        return None
    try:
        kept = msgspec.json.decode(result, type=dict[str, _Kept])[_RESULT]
    except (msgspec.DecodeError, KeyError):
        return None
    if _job_of(kept.id) != job_id:  # a result that was made to look like one
        return None
    return _bound(kept, "result", places())


def _bound(kept: _Kept, name: str, place: Place | None) -> Artifact:
    found = _required(place)
    return Artifact(kept.id, name, found.url(kept.id), kept.digest, kept.size, found)


def _entry(artifact: Artifact) -> dict[str, bytes]:
    kept = _Kept(artifact.id, artifact.digest, artifact.size)
    return {_PREFIX + artifact.name: msgspec.json.encode(kept)}


def _write(place: Place | None, job_id: str, name: str, data: object) -> Artifact:
    found, digest, size = _required(place), _sha256(), 0
    artifact_id = f"{found.space}/{job_id}/{new_id()}"

    def seen() -> Iterator[bytes]:
        nonlocal size
        for chunk in _pieces(name, data):
            digest.update(chunk)
            size += len(chunk)
            yield chunk

    found.write(artifact_id, seen())
    return Artifact(artifact_id, name, found.url(artifact_id), _named(digest), size, found)


def is_reference(value: object, job_id: str) -> bool:
    """Return whether this refers to an artifact of a job, as `Artifact.wire` writes it."""
    artifact_id = value.get("id") if isinstance(value, dict) else None
    return isinstance(artifact_id, str) and _job_of(artifact_id) == job_id


def _job_of(artifact_id: str) -> str:
    return artifact_id.partition("/")[2].rpartition("/")[0]


def _pieces(name: str, data: Any) -> Iterator[bytes]:
    if isinstance(data, bytes | bytearray | memoryview):
        yield bytes(data)
    elif isinstance(data, str | os.PathLike):
        with open(data, "rb") as file:  # noqa: PTH123 - as above
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    elif hasattr(data, "read"):
        while chunk := data.read(CHUNK_BYTES):
            if not isinstance(chunk, bytes):
                raise UsageError(f"artifact {name!r}: the stream gives text; open it as 'rb'")
            yield chunk
    else:
        kind = type(data).__name__
        raise UsageError(f"artifact {name!r} is of type {kind}: give bytes, a path or a stream")


def _required(place: Place | None) -> Place:
    if place is None:
        raise ConfigError(
            "this app has no place for artifacts: give Packhorse(artifacts=...) the path of a "
            "folder that all its workers share, or s3://bucket/prefix"
        )
    return place


def _check_name(name: object) -> None:
    if isinstance(name, str) and 0 < len(name) <= _NAME_LENGTH_MAX and name.isprintable():
        return
    raise UsageError(
        f"{name!r} is no name of an artifact: give 1 to {_NAME_LENGTH_MAX} printable characters"
    )


# Code that only submits does not pay for these.


async def _in_thread(function: Callable[..., T], *args: Any) -> T:
    import asyncio  # noqa: PLC0415 - as said

    return await asyncio.to_thread(function, *args)


def _sha256() -> Any:
    import hashlib  # noqa: PLC0415 - as said

    return hashlib.sha256()


def _named(digest: Any) -> str:
    return f"sha256:{digest.hexdigest()}"
