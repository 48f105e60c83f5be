# SPDX-License-Identifier: MIT
"""Run the Redis tests against other servers than the bundled one, one after another.

    python -m scripts.redis_versions [server ...] [-- options of pytest]

Redis 6 and Valkey come with the development tools. The script uses this machine's Redis 7 if there
is one. Otherwise it fetches Debian's packages into `.cache/redis` and keeps them; nothing is
installed. Each server runs the conformance suite, alone and as a cluster, and the tests of
tests/stores/redis.
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
from tests.servers.redis import PROGRAM_VARIABLE, VARIABLE, valkey_program

BUNDLED: Final = "redis-6"
VALKEY: Final = "valkey"
#: The program of each other one, the version it must say, and the packages it is in.
SERVERS: Final[Mapping[str, tuple[str, str, tuple[str, ...]]]] = MappingProxyType(
    {
        "redis-7": (
            *("redis-server", "v=7."),
            ("redis-server", "redis-tools", "libjemalloc2", "liblzf1", "libatomic1"),
        )
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
    for name in arguments[:cut] or [BUNDLED, *SERVERS, VALKEY]:
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
    if name == VALKEY:
        return {PROGRAM_VARIABLE: valkey_program()}
    program, version, packages = SERVERS[name]
    found = shutil.which(program)
    if found is not None and version in _version_of(found, {}):
        return {PROGRAM_VARIABLE: found}
    folder = CACHE / name
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="fetching-") as passing:
            unpack(packages, Path(passing) / name)
            shutil.move(Path(passing) / name, folder)
    path = str(next(folder.rglob(program)))
    said = _version_of(path, libraries(folder))
    if version not in said:
        raise OSError(f"the package has {said.strip()}")
    return {PROGRAM_VARIABLE: path, **libraries(folder)}


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
