# SPDX-License-Identifier: MIT
"""Artifacts in a folder: one folder for each job, one file for each artifact."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from packhorse.artifacts.locations import job_folder, job_of_folder, split_id

#: Files that are being written.
_PART: Final = ".part"


class FolderPlace:
    """The `packhorse.artifacts.Place` of a folder; any number of processes may share it."""

    def __init__(self, path: str | os.PathLike[str], space: str) -> None:
        self.space = space
        self._root = Path(os.path.abspath(path))  # noqa: PTH100 - `resolve` would follow links

    def write(self, artifact_id: str, chunks: Iterable[bytes]) -> None:
        path = self._path(artifact_id)
        new = not path.parent.is_dir()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = path.with_name(path.name + _PART)
        try:
            with part.open("xb") as file:
                for chunk in chunks:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
        _sync_folder(path.parent)
        if new:
            _sync_folder(path.parent.parent)
            _sync_folder(self._root)

    def read(self, artifact_id: str) -> BinaryIO:
        return self._path(artifact_id).open("rb")

    def url(self, artifact_id: str) -> str:
        return self._path(artifact_id).as_uri()

    def discard(self, artifact_id: str) -> None:
        self._path(artifact_id).unlink(missing_ok=True)

    def jobs(self, after: str, limit: int) -> list[str]:
        try:
            entries = os.scandir(self._root / self.space)
        except FileNotFoundError:
            return []
        with entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
        behind = job_folder(after) if after else ""
        return [job_of_folder(name) for name in names if name > behind][:limit]

    def remove(self, job_id: str) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self._root / self.space / job_folder(job_id))

    def _path(self, artifact_id: str) -> Path:
        return self._root.joinpath(*split_id(artifact_id))


def _sync_folder(path: Path) -> None:
    """Have the names in a folder survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
