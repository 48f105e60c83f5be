# SPDX-License-Identifier: MIT
"""The documentation tests can fail: blocks and wrong commands are found where they are planted."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import click
import pytest

from tests.docs.pages import Block, blocks, commands, shown_commands
from tests.docs.test_examples import problems, run

PAGE = """# A page

```python
a = 1
```

<!-- not run: needs a server -->

```python
connect()
```

<!-- not run: -->
```python
never()
```

- in a list:

  ```console
  $ packhorse jobs list \\
      --json
  no such line
  ```
"""


@click.group()
def root() -> None: ...


@root.group()
def jobs() -> None: ...


@jobs.command("list")
@click.option("--json", "as_json", is_flag=True)
def list_jobs(*, as_json: bool) -> None: ...


def test_blocks_are_found_with_their_lines_and_reasons() -> None:
    found = list(blocks(PAGE))

    assert [(block.line, block.reason) for block in found] == [
        (4, None),
        (10, "needs a server"),
        (15, ""),
        (21, None),
    ]
    assert found[0].code == "a = 1\n"


def test_shown_commands_are_joined_over_lines() -> None:
    (line,) = shown_commands(list(blocks(PAGE))[3])

    assert line.split() == ["jobs", "list", "--json"]
    assert list(problems(line, root)) == []


@pytest.mark.parametrize("line", ["job list", "jobs lst", "jobs list --yaml"])
def test_a_wrong_command_line_is_found(line: str) -> None:
    assert len(list(problems(line, root))) == 1


def test_commands_are_listed_by_the_words_that_call_them() -> None:
    assert list(commands(root)) == ["jobs", "jobs list"]


def test_a_failing_example_fails_with_the_line_of_the_page() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        run(Block("python", "1 / 0\n", line=7, reason=None), Path("a.md"), ModuleType("page"))

    assert raised.traceback[-1].lineno + 1 == 7


def test_an_example_may_await() -> None:
    module = ModuleType("page")
    code = "import asyncio\nvalue = await asyncio.sleep(0, 3)\n"

    run(Block("python", code, line=1, reason=None), Path("a.md"), module)

    assert vars(module)["value"] == 3
