# SPDX-License-Identifier: MIT
"""Scripts: put together from parts, headed, and small."""

from __future__ import annotations

from hashlib import sha1
from importlib.resources import files
from itertools import pairwise

import pytest

from packhorse.stores.redis.statements import loaded
from packhorse.stores.redis.store import RedisStore
from tests.stores.redis.support import asking

PACKAGE = files("packhorse.stores.redis")
FOLDER = PACKAGE / "lua"
SCRIPTS = sorted(file.name.removesuffix(".lua") for file in FOLDER.iterdir() if "." in file.name)
PARTS = sorted(file.name.removesuffix(".lua") for file in (FOLDER / "lib").iterdir())


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_known_by_the_digest_of_what_is_sent(name: str) -> None:
    script = loaded(name)

    assert script.digest == sha1(script.text.encode()).hexdigest()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_taken_by_the_server(name: str, store: RedisStore) -> None:
    digest = store.run(asking("SCRIPT", "LOAD", loaded(name).text))

    assert digest.decode() == loaded(name).digest


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_carries_no_lines_that_only_people_read(name: str) -> None:
    assert not [line for line in loaded(name).text.splitlines() if line.strip().startswith("--")]


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_part_a_script_needs_stands_before_it_and_once(name: str) -> None:
    source = (FOLDER / f"{name}.lua").read_text("utf-8")
    needs = [line for line in source.splitlines() if line.startswith("-- needs: ")]

    assert len(needs) <= 1
    parts = needs[0].removeprefix("-- needs: ").split() if needs else []
    assert len(set(parts)) == len(parts)
    assert set(parts) <= set(PARTS)
    firsts = [_first_code((FOLDER / "lib" / f"{part}.lua").read_text("utf-8")) for part in parts]
    heads = [loaded(name).text.find(first) for first in firsts]
    assert all(one < other for one, other in pairwise(heads))


@pytest.mark.parametrize("name", [*SCRIPTS, *(f"lib/{part}" for part in PARTS)])
def test_every_file_says_what_it_is_for(name: str) -> None:
    first, second, *_ = (FOLDER / f"{name}.lua").read_text("utf-8").splitlines()

    assert first == "-- SPDX-License-Identifier: MIT"
    assert second.startswith("-- ")


def test_every_script_and_every_part_is_used() -> None:
    python = "".join(
        file.read_text("utf-8") for file in PACKAGE.iterdir() if file.name.endswith(".py")
    )
    needed = " ".join(
        line
        for name in SCRIPTS
        for line in (FOLDER / f"{name}.lua").read_text("utf-8").splitlines()
        if line.startswith("-- needs: ")
    ).split()

    assert [name for name in SCRIPTS if f'"{name}"' not in python] == []
    assert [part for part in PARTS if part not in needed] == []


def _first_code(source: str) -> str:
    return next(line for line in source.splitlines() if line and not line.startswith("--"))
