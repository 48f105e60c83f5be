# SPDX-License-Identifier: MIT
"""Where a run took place: without it no figure means anything."""

from __future__ import annotations

import os
import platform
import sqlite3
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil


def facts(directory: Path) -> dict[str, str]:
    """The machine, the interpreter, and the versions of what was measured."""
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    return {
        "machine": f"{_processor()}, {os.cpu_count()} cores, "
        f"{psutil.virtual_memory().total / 2**30:.0f} GiB, {platform.system()} "
        f"{platform.release()}",
        "load when started": f"{load} (1, 5, 15 minutes)",
        "file system": _file_system(directory),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "event loop": f"uvloop {version_of('uvloop')}" if _has("uvloop") else "asyncio",
        "packages": versions_of("packhorse", "msgspec"),
    }


def sqlite_facts() -> dict[str, str]:
    """The version of the library that Python is built with."""
    return {"SQLite": sqlite3.sqlite_version}


def versions_of(*packages: str) -> str:
    """What is installed of each."""
    return ", ".join(f"{name} {version_of(name)}" for name in packages)


def _processor() -> str:
    """The model of the processor, where the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _file_system(directory: Path) -> str:
    """What the files lie on: where it is memory, a commit costs nothing."""
    inside = [
        one
        for one in psutil.disk_partitions(all=True)
        if directory.resolve().is_relative_to(one.mountpoint)
    ]
    nearest = max(inside, key=lambda one: len(one.mountpoint), default=None)
    return "unknown" if nearest is None else str(nearest.fstype)


def _has(package: str) -> bool:
    return version_of(package) != "not installed"


def version_of(package: str) -> str:
    """What is installed of one."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "from the source tree" if package == "packhorse" else "not installed"
