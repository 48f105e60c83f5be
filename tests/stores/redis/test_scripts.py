# SPDX-License-Identifier: MIT
"""Scripts: put together from sections, each in its place, and none unused."""

from __future__ import annotations

import re
from hashlib import sha1
from importlib.resources import files

import pytest

from packhorse.stores.redis.scripts import loaded, sections
from packhorse.stores.redis.store import RedisStore
from scripts.redis_layout import FILE, layout_text
from tests.stores.redis.support import asking

PACKAGE = files("packhorse.stores.redis")
FOLDER = PACKAGE / "lua"
FILES = sorted(file.name for file in FOLDER.iterdir())
SCRIPTS = sorted(name.split()[1] for name in sections() if name.startswith("script "))
FAST = sorted(name.split()[1] for name in sections() if name.startswith("fast "))
NEEDS = re.compile(r"^-- needs: (.*)$", re.MULTILINE)


def test_the_layout_of_the_scripts_is_the_one_of_python() -> None:
    assert FILE.read_text("utf-8") == layout_text(), "run python -m scripts.redis_layout"


@pytest.mark.parametrize("name", [name for name in FILES if name != "layout.lua"])
def test_layout_is_named_not_spelled_out(name: str) -> None:
    code = re.sub(r"--.*", "", (FOLDER / name).read_text("utf-8"))

    assert re.findall(r"':[a-z]+:?'", code) == []  # names of keys
    assert re.findall(r"'[0-7]:'", code) == []  # statuses of counts
    assert re.findall(r"status (?:==|~=|=) \d", code) == []
    assert re.findall(r"'H(?:GET|SET|DEL)', keys\.job\([^)]*\), '", code) == []  # fields


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_taken_by_the_server(name: str, *, fast: bool, store: RedisStore) -> None:
    script = loaded(name, fast=fast)

    digest = store.run(asking("SCRIPT", "LOAD", script.text))

    assert digest.decode() == script.digest == sha1(script.text.encode()).hexdigest()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_carries_no_lines_that_only_people_read(name: str) -> None:
    assert not [line for line in loaded(name).text.splitlines() if line.strip().startswith("--")]


@pytest.mark.parametrize("name", FAST)
def test_a_fast_route_is_left_out_on_request(name: str) -> None:
    general = loaded(name, fast=False).text

    assert loaded(name).text.startswith("do\n")
    assert loaded(name).text.endswith(f"\nend\n{general}")
    assert not general.startswith("do\n")


@pytest.mark.parametrize("name", FAST)
def test_a_fast_route_is_loaded_with_what_it_uses_and_no_more(name: str) -> None:
    general = loaded(name, fast=False).text
    route = loaded(name).text.removesuffix(general)
    defined = re.findall(r"^(?:local )?function ([\w.]+)\(", route, re.MULTILINE)

    used = re.findall(r"\w+(?:\.\w+)*", route)

    assert "keys_job" in defined
    assert [each for each in defined if used.count(each) < 2] == []


def test_a_fast_submit_defines_nothing_for_the_head_of_a_line_unless_it_changes() -> None:
    every_time, _ = loaded("submit").text.split("redis.call('ZRANK'", 1)

    assert "keys_line" in every_time
    assert "lines_place" not in every_time
    assert "signatures" not in every_time


@pytest.mark.parametrize("name", FILES)
def test_every_file_says_what_it_is_for(name: str) -> None:
    first, second, *_ = (FOLDER / name).read_text("utf-8").splitlines()

    assert first == "-- SPDX-License-Identifier: MIT"
    assert second.startswith("-- ")


def test_every_script_and_every_library_is_used() -> None:
    python = "".join(
        file.read_text("utf-8") for file in PACKAGE.iterdir() if file.name.endswith(".py")
    )
    needed = " ".join(line for text in sections().values() for line in NEEDS.findall(text)).split()
    libraries = [
        name.split()[1]
        for name, text in sections().items()
        if name.startswith("library ") and re.search(r"^[^-\n]", text, re.MULTILINE)
    ]

    assert [name for name in SCRIPTS if f'"{name}"' not in python] == []
    assert [name for name in libraries if name not in needed] == []
    assert [name for name in needed if name not in libraries] == []
    assert [name for name in FAST if name not in SCRIPTS] == []
