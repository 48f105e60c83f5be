# SPDX-License-Identifier: MIT
"""Every public name, error and command is documented."""

from __future__ import annotations

import re

import packhorse
from packhorse import errors, group_errors
from tests.docs.pages import DOCS, commands, root_command

REFERENCE = DOCS / "reference"


def page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def missing(names: list[str], text: str) -> list[str]:
    return [name for name in names if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)]


def test_every_public_name_is_in_the_reference() -> None:
    reference = "\n".join(path.read_text(encoding="utf-8") for path in REFERENCE.glob("*.md"))

    assert missing(list(packhorse.__all__), reference) == []


def test_every_error_is_documented_with_its_code() -> None:
    found = [each for each in vars(errors).values() if isinstance(each, type)]
    classes = [each for each in found if issubclass(each, errors.PackhorseError)]
    names = [word for error in classes for word in (error.__name__, error.code)]

    assert missing(names, page("errors.md")) == []


def test_every_error_is_importable_from_the_package() -> None:
    named = [*vars(errors).items(), *vars(group_errors).items()]
    kinds = [(name, each) for name, each in named if isinstance(each, type)]
    raised = {name for name, kind in kinds if issubclass(kind, errors.PackhorseError)}

    assert raised <= set(packhorse.__all__)


def test_every_command_is_documented() -> None:
    assert missing(list(commands(root_command())), page("cli.md")) == []


def test_a_missing_name_is_noticed() -> None:
    assert missing(["Job", "JobHandle"], "`JobHandle` is a handle") == ["Job"]
