# SPDX-License-Identifier: MIT
"""The examples of the page about contracts that need the extra `schema` run too, in order."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.pages import DOCS, blocks

PAGE = DOCS / "how-to" / "contracts.md"


def test_all_examples_of_the_page_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("documentation")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(tmp_path)

    ran = [
        block for block in blocks(PAGE.read_text(encoding="utf-8")) if block.language == "python"
    ]
    for block in ran:
        exec(compile("\n" * (block.line - 1) + block.code, str(PAGE), "exec"), vars(module))

    assert sum(block.reason is not None for block in ran) == 2
