# SPDX-License-Identifier: MIT
"""Files that may hold the app when nobody said where it is; read here, not imported."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Candidate", "candidates"]

_NAMES: Final = ("app", "main", "tasks", "jobs")
#: Packages below `src` that are looked into.
_PACKAGES_MAX: Final = 100
#: A larger file was not written by hand.
_FILE_BYTES_MAX: Final = 1_000_000
#: What makes an app. A file without it is not imported: importing runs whatever is in it.
_MAKES_AN_APP: Final = re.compile(r"\bPackhorse\s*\(")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One file that was looked at."""

    module: str
    root: Path  #: the folder its module name starts from
    shown: str  #: its path as people see it
    verdict: str
    promising: bool


def candidates(folder: Path) -> Iterator[Candidate]:
    """app.py, main.py, tasks.py and jobs.py, here and in every package below `src`."""
    for name in _NAMES:
        yield _candidate(folder, Path(f"{name}.py"), folder)
    source = folder / "src"
    packages = sorted(path for path in source.glob("*/") if path.name.isidentifier())
    for package in packages[:_PACKAGES_MAX]:
        paths = (Path(package.name, f"{name}.py") for name in _NAMES)
        yield from (_candidate(source, path, folder) for path in paths if (source / path).is_file())


def _candidate(root: Path, path: Path, folder: Path) -> Candidate:
    verdict, promising = _looked_into(root / path)
    return Candidate(
        module=".".join(path.with_suffix("").parts),
        root=root,
        shown=(root / path).relative_to(folder).as_posix(),
        verdict=verdict,
        promising=promising,
    )


def _looked_into(path: Path) -> tuple[str, bool]:
    try:
        if path.stat().st_size > _FILE_BYTES_MAX:
            return "too large to look into", False
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return "not there", False
    except (OSError, ValueError) as error:
        return f"cannot be read: {error}", False
    if _MAKES_AN_APP.search(text):
        return "makes an app, but not as a variable of the module", True
    return "makes no Packhorse(...)", False
