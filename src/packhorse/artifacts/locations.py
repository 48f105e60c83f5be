# SPDX-License-Identifier: MIT
"""Where artifacts are stored: the contract of a place, and which URL means which."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from typing import BinaryIO, Final, Protocol
from urllib.parse import quote, unquote, urlsplit

from packhorse.errors import ArtifactError, ConfigError

#: Read and written at once.
CHUNK_BYTES: Final = 256 * 1024
#: The longest name of a folder that file systems take, in bytes.
_FOLDER_NAME_MAX: Final = 255
_SPACE_DIGITS: Final = 16


class Place(Protocol):
    """Store bytes by an id of space, job and token; an id is used once, nothing is overwritten.

    Each store has its own space, so that stores which share a place do not remove each other's.
    """

    @property
    def space(self) -> str:
        """The space of the store whose app opened it."""
        ...

    def write(self, artifact_id: str, chunks: Iterable[bytes]) -> None:
        """Store all of it, or nothing; once this returns, a crash does not lose it."""
        ...

    def read(self, artifact_id: str) -> BinaryIO:
        """Open an artifact as a stream; `FileNotFoundError` if there is none."""
        ...

    def url(self, artifact_id: str) -> str:
        """Return its address."""
        ...

    def discard(self, artifact_id: str) -> None:
        """Remove one; it may be gone already."""
        ...

    def jobs(self, after: str, limit: int) -> list[str]:
        """List jobs with artifacts in this space, in a fixed order, behind `after`."""
        ...

    def remove(self, job_id: str) -> None:
        """Remove everything of a job from this space, also unfinished writes."""
        ...


class PlaceSource:
    """Open an app's place for artifacts when it is first needed."""

    def __init__(self, opened: Callable[[], Place | None], *, chosen: bool) -> None:
        self.chosen = chosen  #: the app names a place, so that large results go there
        self.sealed = False  #: the store's values are encrypted, which artifacts are not
        self._open = opened
        self._place: Place | None = None

    def __call__(self) -> Place | None:
        """Return the place; None if the app has none."""
        if self._place is None:
            self._place = self._open()
        return self._place


def open_place(given: str | None, url: str | None, folder: str, label: str) -> Place | None:
    """Open the place that an app names, else one beside its store if that is a file or memory.

    `label` names the store, without secrets, the same in all its processes.
    """
    import hashlib  # noqa: PLC0415 - code that only submits does not pay for it

    space = hashlib.sha256(label.encode()).hexdigest()[:_SPACE_DIGITS]
    if given is not None:
        scheme = urlsplit(given).scheme
        if scheme == "s3":
            from packhorse.artifacts.s3 import BucketPlace  # noqa: PLC0415 - needs an extra

            return BucketPlace.of_url(given, space)
        if "://" in given:
            raise ConfigError(
                f"artifacts={given!r} is no place to keep artifacts in: give the path of a folder, "
                "or s3://bucket/prefix"
            )
        path = os.path.join(folder, given)  # noqa: PTH118 - pathlib is slow to import
    elif url is not None and url.startswith("sqlite:///") and ":memory:" not in url:
        path = urlsplit(url).path.removeprefix("/") + "-artifacts"
        path = os.path.join(folder, unquote(path))  # noqa: PTH118 - as above
    elif url is None or url.startswith(("memory:", "sqlite:")):
        return MemoryPlace(space)
    else:
        return None
    from packhorse.artifacts.folder import FolderPlace  # noqa: PLC0415 - as above

    return FolderPlace(path, space)


def split_id(artifact_id: str) -> tuple[str, str, str]:
    """Return the folder names of an id: for space, job and token."""
    space, _, rest = artifact_id.partition("/")
    job_id, _, token = rest.rpartition("/")
    return job_folder(space), job_folder(job_id), job_folder(token)


def job_folder(job_id: str) -> str:
    """Return the name of a job's folder, which is neither a path nor hidden, whatever the id."""
    name = quote(job_id, safe="").replace(".", "%2E")
    if not name or len(name) > _FOLDER_NAME_MAX:
        raise ArtifactError(
            f"job {job_id[:80]!r} cannot have artifacts: its id has {len(name)} bytes as the name "
            f"of a folder, and 1 to {_FOLDER_NAME_MAX} are possible",
            job_id=job_id,
        )
    return name


def job_of_folder(name: str) -> str:
    """Return the job whose folder has this name."""
    return unquote(name)


class MemoryPlace:
    """The `Place` of a store in memory, and of contexts that belong to no job."""

    def __init__(self, space: str = "memory") -> None:
        self.space = space
        self._kept: dict[str, bytes] = {}

    def write(self, artifact_id: str, chunks: Iterable[bytes]) -> None:
        self._kept[artifact_id] = b"".join(chunks)

    def read(self, artifact_id: str) -> BinaryIO:
        try:
            return io.BytesIO(self._kept[artifact_id])
        except KeyError:
            raise FileNotFoundError(artifact_id) from None

    def url(self, artifact_id: str) -> str:
        return "memory://artifacts/" + "/".join(split_id(artifact_id))

    def discard(self, artifact_id: str) -> None:
        self._kept.pop(artifact_id, None)

    def jobs(self, after: str, limit: int) -> list[str]:
        found = {each.partition("/")[2].rpartition("/")[0] for each in list(self._kept)}
        return sorted(job_id for job_id in found if job_id > after)[:limit]

    def remove(self, job_id: str) -> None:
        for each in list(self._kept):
            if each.rpartition("/")[0] == f"{self.space}/{job_id}":
                self._kept.pop(each, None)
