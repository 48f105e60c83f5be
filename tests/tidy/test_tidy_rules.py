# SPDX-License-Identifier: MIT
"""The tidy test can fail: every rule finds what is planted for it, and passes what is fine."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator

import pytest

from tests.tidy import code_rules, surface_rules, text_rules
from tests.tidy.budgets import Budget
from tests.tidy.code_rules import Source
from tests.tidy.test_tidy import excused, expect_none

IF_IN_FOR = "def f():\n  for a in b:\n    if a:\n      a()\n"
IF_IN_TRY = "def f():\n  try:\n    if a:\n      a()\n  finally:\n    b()\n"
IF_AFTER_IF = "def f():\n  if a:\n    a()\n  elif b:\n    b()\n  elif c:\n    c()\n"
IF_IN_INNER_FUNCTION = "def f():\n  if a:\n    def g():\n      if b:\n        b()\n"
FOUR_LINES_OF_DOCSTRING = 'def f():\n  """A\n\n  B\n  """\n  a = 1\n'

SMALL = Budget(file_lines=6, function_lines=2, parameters=2, nesting=1)


def planted(text: str, module: str = "packhorse.planted") -> Source:
    return Source(module, textwrap.dedent(text))


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (code_rules.long_file, "a = 1\n" * 7),
        (code_rules.long_functions, "def f():\n    a = 1\n    b = 2\n    c = 3\n"),
        (code_rules.deep_nesting, IF_IN_FOR),
        (code_rules.deep_nesting, IF_IN_TRY),
    ],
)
def test_what_is_over_budget_is_found(
    rule: Callable[[Source, Budget], Iterator[str]], text: str
) -> None:
    assert len(list(rule(planted(text), SMALL))) == 1


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (code_rules.long_functions, FOUR_LINES_OF_DOCSTRING),
        (code_rules.deep_nesting, IF_AFTER_IF),
        (code_rules.deep_nesting, IF_IN_INNER_FUNCTION),
    ],
)
def test_what_is_within_budget_passes(
    rule: Callable[[Source, Budget], Iterator[str]], text: str
) -> None:
    assert not list(rule(planted(text), SMALL))


def test_parameters_are_counted_without_self() -> None:
    source = planted("class A:\n    def f(self, a, b): ...\n    def g(self, a, *, b, **c): ...\n")

    ((key, finding),) = code_rules.many_parameters(source, SMALL)

    assert key == "packhorse.planted:A.g"
    assert "A.g takes 3 parameters" in finding


def test_a_finding_fails_the_test_that_looked_for_it() -> None:
    with pytest.raises(pytest.fail.Exception, match="f is wide"):
        expect_none(["f is wide"])


def test_an_exception_excuses_its_finding_and_an_idle_one_is_a_finding() -> None:
    findings = [("a:f", "f is wide"), ("a:g", "g is wide")]

    assert list(excused(findings, {"a:f": "reason", "a:h": "reason"})) == [
        "g is wide",
        "a:h: needs no exception, remove it",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "import random\n",
        "from secrets import token_hex\n",
        "from time import monotonic\n",
        "import time\ntime.sleep(1)\n",
        "import datetime\ndatetime.datetime.now()\n",
        "from uuid import uuid4\n",
    ],
)
def test_readers_of_time_and_chance_are_found(text: str) -> None:
    assert len(list(code_rules.clock_readers(planted(text)))) == 1
    assert not list(code_rules.clock_readers(planted(text, "packhorse.core.clock")))


def test_a_module_without_header_and_docstring_is_found() -> None:
    assert len(list(code_rules.header(planted("a = 1\n")))) == 2
    assert not list(code_rules.header(planted(f'{code_rules.SPDX}\n"""What it is for."""\n')))


@pytest.mark.parametrize(
    ("value", "mutable"),
    [
        ("{}", True),
        ("[1]", True),
        ("{n for n in range(3)}", True),
        ("defaultdict(list)", True),
        ("weakref.WeakSet[int]()", True),
        ("(1, 2)", False),
        ("frozenset({1})", False),
        ("MappingProxyType({1: 2})", False),
    ],
)
def test_mutable_state_of_modules_is_found(value: str, mutable: bool) -> None:  # noqa: FBT001 - a column of the table above
    plain = planted(f"NAMES = {value}\n__all__ = ['NAMES']\n")
    annotated = planted(f"_names: Any = {value}\n")

    assert len(list(code_rules.mutable_state(plain))) == mutable
    assert len(list(code_rules.mutable_state(annotated))) == mutable


def test_missing_annotations_are_found() -> None:
    source = planted("class A:\n    def f(self, a: int) -> int: ...\n    def g(self, a): ...\n")

    assert list(code_rules.missing_annotations(source)) == [
        "planted.py:3: A.g lacks the types of a, return"
    ]


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("__all__ = ['b', 'a']\na = b = 1\n", "not sorted"),
        ("__all__ = ['a', 'a']\na = 1\n", "not sorted"),
        ("__all__ = ['a']\n", "lists a, which is not here"),
        ("__all__ = []\nclass A: ...\n", "lacks A"),
    ],
)
def test_a_wrong_list_of_public_names_is_found(text: str, finding: str) -> None:
    (found,) = surface_rules.unsorted_or_incomplete_all(planted(text))

    assert finding in found


def test_a_package_lists_what_it_re_exports() -> None:
    text = "from packhorse.core.job import Job, JobStatus\n__all__ = ['Job']\n"
    source = Source("packhorse", text, "src/packhorse/__init__.py")

    assert "lacks JobStatus" in "".join(surface_rules.unsorted_or_incomplete_all(source))


def test_a_list_that_repeats_the_module_is_found() -> None:
    repeated = planted("__all__ = ['A']\nclass A: ...\n")
    offered = planted("from packhorse.core.job import Job\n__all__ = ['Job']\n")

    assert "leave it out" in "".join(surface_rules.needless_all(repeated))
    assert not list(surface_rules.needless_all(offered))


def test_wide_contracts_and_surfaces_are_found() -> None:
    verbs = "".join(f"    def verb{n}(self) -> None: ...\n" for n in range(3))
    source = planted(f"__all__ = ['Store', 'Other']\nclass Store(Protocol):\n{verbs}")

    assert "Store has 3 verbs" in "".join(surface_rules.wide_contracts(source, 2))
    assert not list(surface_rules.wide_contracts(source, 3))
    assert "2 public names" in "".join(surface_rules.many_public_names(source, 1))


def test_dead_modules_are_found() -> None:
    sources = [
        Source("packhorse", "from packhorse.a import x\n", "src/packhorse/__init__.py"),
        Source("packhorse.a", "from . import b\nLATE = 'packhorse.late:main'\n"),
        Source("packhorse.b", ""),
        Source("packhorse.late", ""),
        Source("packhorse.dead", "import packhorse.dead\n", "dead.py"),
    ]

    (found,) = surface_rules.dead_modules(sources, {"packhorse"})
    assert found.startswith("dead.py")


def test_packages_that_nothing_imports_are_found() -> None:
    sources = [planted("import hard\nfrom soft_part.inner import name\n")]
    extras = {"some": ["soft-part[fast]>=1"], "hollow": ["idle>=2"], "all": ["p[some]"]}
    project = {"name": "p", "dependencies": ["hard"], "optional-dependencies": extras}

    hollow, incomplete = surface_rules.idle_dependencies(sources, project)
    assert hollow.endswith("nothing imports idle>=2")
    assert "all" in incomplete
    fine = {"some": extras["some"], "all": ["p[some]"]}
    assert not list(
        surface_rules.idle_dependencies(sources, {**project, "optional-dependencies": fine})
    )


def test_long_and_silent_queries_are_found() -> None:
    assert len(list(text_rules.query_file("a.sql", "select 1;\n" * 3, limit=2))) == 2
    assert not list(text_rules.query_file("a.sql", "-- One.\nselect 1;\n", limit=2))


def test_numbered_parameters_are_found() -> None:
    assert not list(text_rules.query_file("a.sql", "-- One.\nselect ?, ?, :two\n", limit=9))
    assert list(text_rules.query_file("a.sql", "-- One.\nselect ?, ?1\n", limit=9))


def test_long_lua_functions_are_found() -> None:
    text = "local function one(a)\n  if a then\n    b()\n  end\nend\n"

    assert len(list(text_rules.long_lua_functions("a.lua", text, limit=2))) == 1
    assert not list(text_rules.long_lua_functions("a.lua", text, limit=3))


def test_the_queries_of_a_topic_are_looked_at_one_by_one() -> None:
    text = "-- name: one\n-- One.\nselect 1\n\n-- name: two\nselect 2\n"

    found = list(text_rules.named_queries("queries/a.sql", text))

    assert [name for name, _ in found] == ["queries/a.sql: one", "queries/a.sql: two"]
    assert [words for _, words in found] == ["-- One.\nselect 1", "select 2"]


def test_pages_with_no_or_two_titles_are_found() -> None:
    assert list(text_rules.page_titles("a.md", "# A\n\n# B\n"))
    assert list(text_rules.page_titles("a.md", "## A\n"))
    assert not list(text_rules.page_titles("a.md", "# A\n```console\n# a comment\n```\n"))


@pytest.mark.parametrize(
    "line", ["TO" + "DO: later", "https://py" + "pi.org/simple", "/" + "home/me/x", "/" + "work"]
)
def test_unwanted_text_is_found(line: str) -> None:
    assert list(text_rules.unwanted_text("README.md", line)) != []


@pytest.mark.parametrize("line", ["Some" + "body acts", "def test_it_wakes_no" + "body() -> None:"])
def test_words_that_name_no_actor_are_found(line: str) -> None:
    assert [name for name, _ in text_rules.odd_words("a.py", f"x\n{line}\n")] == ["a.py"]
    assert not list(text_rules.odd_words("a.py", "someone renews"))


def test_decisions_may_speak_of_unfinished_work() -> None:
    assert not list(text_rules.unwanted_text("docs/adr/0001-a.md", "TO" + "DO"))
