# SPDX-License-Identifier: MIT
"""An environment of its own for each peer, made on demand under `.cache/peers`, and kept.

What the peers need does not agree with each other, nor with what we need.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).resolve().parent
#: Where the environments lie: beside the source, never in it.
CACHE: Final = _HERE.parent.parent / ".cache" / "peers"
#: What an environment was made from; written last, so that half an environment has none.
_STAMP: Final = "made-from"
_INSTALL_SECONDS_MAX: Final = 600
_ANSWER_SECONDS_MAX: Final = 20
#: How much of what a failed program said is told.
_TAIL_CHARACTERS: Final = 300
_NEWEST_MINOR: Final = 14

Version = tuple[int, int]


class Absent(Exception):
    """A peer cannot be measured here; says why."""


def pinned(name: str, folder: Path = _HERE) -> dict[str, str]:
    """The packages of a peer's environment and their versions."""
    lines = (folder / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {package.strip(): version.strip() for package, version in pairs}


def node_pinned(name: str) -> dict[str, str]:
    """The same of a peer that runs on Node."""
    described = json.loads((_HERE / name / "package.json").read_text(encoding="utf-8"))
    packages: dict[str, str] = described["dependencies"]
    return packages


def python_programs(name: str, minimum: Version) -> Path:
    """The folder with the programs of a peer's environment, which is made if there is none."""
    interpreter = find_python(minimum)
    requirements = _HERE / f"{name}.txt"
    target = CACHE / name

    def make() -> None:
        _run([str(interpreter), "-m", "venv", str(target)])
        pip = [str(target / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        _run([*pip, "install", "-qq", "--requirement", str(requirements)])

    made(target, f"{interpreter}\n{requirements.read_text(encoding='utf-8')}", make)
    return target / "bin"


def node_modules(name: str) -> Path:
    """The packages of a peer that runs on Node, installed if they are not."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise Absent("there is no node, or no npm, on this machine")
    package = _HERE / name / "package.json"
    target = CACHE / name

    def make() -> None:
        target.mkdir(parents=True)
        shutil.copy(package, target)
        quiet = ("--no-package-lock", "--no-audit", "--no-fund", "--loglevel", "error")
        _run(["npm", "install", "--prefix", str(target), *quiet])

    made(target, package.read_text(encoding="utf-8"), make)
    return target / "node_modules"


def find_python(minimum: Version) -> Path:
    """This interpreter, if it is new enough; else one on the path, or one that pyenv has."""
    if sys.version_info >= minimum:
        return Path(sys.executable)
    for candidate in _candidates(minimum):
        if _is_at_least(candidate, minimum):
            return candidate
    wanted = ".".join(map(str, minimum))
    raise Absent(f"it needs Python {wanted} or newer, and there is none on this machine")


def _candidates(minimum: Version) -> Iterator[Path]:
    """Other interpreters that may be there, the oldest that is new enough first."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in range(minimum[1], _NEWEST_MINOR + 1):
        program = f"python{minimum[0]}.{minor}"
        found = shutil.which(program)
        if found is not None:
            yield Path(found)
        yield from sorted(pyenv.glob(f"{minimum[0]}.{minor}.*/bin/{program}"))


def _is_at_least(interpreter: Path, minimum: Version) -> bool:
    """Whether it runs at all, and is new enough: a name on the path may lead nowhere."""
    question = f"import sys; sys.exit(sys.version_info < {minimum})"
    try:
        done = subprocess.run(
            [interpreter, "-c", question],
            capture_output=True,
            timeout=_ANSWER_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def made(target: Path, source: str, make: Callable[[], None]) -> None:
    """Make an environment, unless it was made from the same."""
    stamp, wanted = target / _STAMP, hashlib.sha256(source.encode()).hexdigest()
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    shutil.rmtree(target, ignore_errors=True)
    make()
    stamp.write_text(wanted, encoding="utf-8")


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_INSTALL_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Absent(f"its installation took more than {_INSTALL_SECONDS_MAX} s") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-_TAIL_CHARACTERS:]
        raise Absent(f"it could not be installed: {said}")
