# SPDX-License-Identifier: MIT
"""Private servers start wherever the environment lies, also where only its owner may enter."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import postgres
from tests.servers.postgres import PROGRAMS_VARIABLE, PostgresServer


@pytest.fixture
def closed_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The installed programs and the libraries beside them, in a folder others may not enter."""
    installed = postgres._installed()
    package = installed.parent
    for beside in (package, package.with_name(f"{package.name}.libs")):
        (tmp_path / beside.name).symlink_to(beside)
    tmp_path.chmod(0o700)
    closed = tmp_path / package.name / installed.name
    monkeypatch.setenv(PROGRAMS_VARIABLE, str(closed))
    postgres._programs.cache_clear()
    postgres._initialised.cache_clear()  # else these programs need not make the data
    yield closed
    postgres._programs.cache_clear()


def test_copied_programs_find_their_libraries(closed_programs: Path) -> None:
    copied = postgres._copied(closed_programs)

    programs = ("initdb", "postgres", "pg_ctl", "pg_basebackup")
    there = [
        copied / "bin" / name for name in programs if (closed_programs / "bin" / name).exists()
    ]
    told = [
        subprocess.run([program, "--version"], check=True, capture_output=True).stdout
        for program in there
    ]

    assert len(there) >= 3  # the packages of older versions have no pg_basebackup
    assert all(b"PostgreSQL" in each for each in told)
    assert all(path.stat().st_mode & 0o055 == 0o055 for path in copied.parent.rglob("*"))


def test_a_server_starts_from_a_folder_others_may_not_enter(closed_programs: Path) -> None:
    server = PostgresServer()
    try:
        with server.connect() as connection:
            assert connection.execute("select 1").fetchone() == (1,)
    finally:
        server.remove()
