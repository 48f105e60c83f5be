# SPDX-License-Identifier: MIT
"""Programs of Debian's packages, unpacked and not installed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path


def unpack(packages: Sequence[str], folder: Path) -> None:
    """Fetch packages and unpack them; the first must be there, the system may have the others."""
    fetched = folder / "packages"
    fetched.mkdir(parents=True)
    for name in packages:
        run = subprocess.run(  # noqa: S603 - our own list
            ["apt-get", "download", name],  # noqa: S607 - Debian's own
            cwd=fetched,
            check=name == packages[0],
            capture_output=True,
        )
        if run.returncode:
            print(f"{name} is not to be had; perhaps the system has it")
    for package in fetched.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(folder)], check=True)  # noqa: S603, S607


def libraries(folder: Path) -> dict[str, str]:
    """The environment in which an unpacked program finds the libraries beside it."""
    found = {str(path.parent) for path in (folder / "usr" / "lib").rglob("*.so*")}
    return {"LD_LIBRARY_PATH": os.pathsep.join(sorted(found))}
