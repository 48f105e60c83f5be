# SPDX-License-Identifier: MIT
"""The style guide, executable: every rule of STYLE.md held against the whole repository."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping

import pytest

from tests.tidy import budgets, code_rules, surface_rules, text_rules
from tests.tidy.code_rules import Source

PACKAGE = [Source.read(path, budgets.SOURCE) for path in sorted(budgets.SOURCE.rglob("*.py"))]
TESTS = [Source.read(path, budgets.ROOT) for path in sorted(budgets.TESTS.rglob("*.py"))]
TEXTS = {
    path.relative_to(budgets.ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in text_rules.repository_files(budgets.ROOT)
}


def expect_none(findings: Iterable[str]) -> None:
    if report := "\n".join(findings):
        pytest.fail(report, pytrace=False)


def excused(findings: Iterable[tuple[str, str]], exceptions: Mapping[str, str]) -> Iterator[str]:
    """Findings that no exception covers, and exceptions that cover nothing."""
    by_key = dict(findings)
    yield from (finding for key, finding in by_key.items() if key not in exceptions)
    yield from (f"{key}: needs no exception, remove it" for key in exceptions.keys() - by_key)


@pytest.mark.parametrize(
    "rule",
    [code_rules.long_file, code_rules.long_functions, code_rules.deep_nesting],
    ids=lambda rule: rule.__name__,
)
def test_the_package_keeps_its_budgets(
    rule: Callable[[Source, budgets.Budget], Iterator[str]],
) -> None:
    findings = (finding for source in PACKAGE for finding in rule(source, budgets.SOURCE_BUDGET))

    expect_none(findings)


@pytest.mark.parametrize(
    "rule",
    [
        code_rules.header,
        code_rules.clock_readers,
        code_rules.missing_annotations,
        surface_rules.unsorted_or_incomplete_all,
        surface_rules.needless_all,
    ],
    ids=lambda rule: rule.__name__,
)
def test_every_module_keeps_the_rules(rule: Callable[[Source], Iterator[str]]) -> None:
    expect_none(finding for source in PACKAGE for finding in rule(source))


def test_functions_take_few_parameters() -> None:
    findings = (
        finding
        for source in PACKAGE
        for finding in code_rules.many_parameters(source, budgets.SOURCE_BUDGET)
    )

    expect_none(excused(findings, budgets.MANY_PARAMETERS))


def test_modules_hold_no_mutable_state() -> None:
    findings = (finding for source in PACKAGE for finding in code_rules.mutable_state(source))

    expect_none(excused(findings, budgets.MUTABLE_STATE))


def test_every_module_is_used() -> None:
    expect_none(surface_rules.dead_modules(PACKAGE, budgets.ENTRY_POINTS))


def test_every_declared_package_is_imported() -> None:
    project = tomllib.loads(TEXTS["pyproject.toml"])["project"]

    expect_none(surface_rules.idle_dependencies(PACKAGE, project))


def test_store_contracts_are_small() -> None:
    contracts = Source.read(budgets.CONTRACTS, budgets.SOURCE)

    expect_none(surface_rules.wide_contracts(contracts, budgets.CONTRACT_VERBS))


def test_the_table_of_the_style_guide_says_the_limits_that_are_checked() -> None:
    rows = [line.split("|") for line in TEXTS["STYLE.md"].splitlines() if line.startswith("| ")]
    told = {row[1].strip(): row[-2].replace(" ", "") for row in rows[1:]}

    source, test = budgets.SOURCE_BUDGET, budgets.TEST_BUDGET
    assert list(told.values())[1:] == [
        *map(str, (source.file_lines, source.function_lines, source.parameters, source.nesting)),
        *map(str, (budgets.CONTRACT_VERBS, budgets.PUBLIC_NAMES, budgets.SQL_LINES)),
        f"{budgets.LUA_LINES},{budgets.LUA_FUNCTION_LINES}",
        f"{test.file_lines},{test.function_lines}",
    ], told


def test_the_public_surface_is_small() -> None:
    surface = Source.read(budgets.SURFACE, budgets.SOURCE)

    expect_none(surface_rules.many_public_names(surface, budgets.PUBLIC_NAMES))


def test_tests_keep_their_budgets() -> None:
    rules = (code_rules.long_file, code_rules.long_functions)
    findings = (
        finding
        for source in TESTS
        for rule in rules
        for finding in rule(source, budgets.TEST_BUDGET)
    )

    expect_none(findings)


def test_queries_are_short_and_say_what_they_do() -> None:
    queries = {name: text for name, text in TEXTS.items() if name.endswith((".sql", ".lua"))}
    findings = (
        finding
        for file, whole in queries.items()
        for name, text in text_rules.named_queries(file, whole)
        for finding in text_rules.query_file(name, text, _query_lines(file))
    )

    expect_none(findings)


def _query_lines(name: str) -> int:
    if name.endswith(".lua"):
        return budgets.LUA_LINES
    return budgets.MIGRATION_LINES if "/migrations/" in name else budgets.SQL_LINES


def test_lua_functions_are_short() -> None:
    scripts = {name: text for name, text in TEXTS.items() if name.endswith(".lua")}

    expect_none(
        finding
        for name, text in scripts.items()
        for finding in text_rules.long_lua_functions(name, text, budgets.LUA_FUNCTION_LINES)
    )


def test_every_page_has_one_title() -> None:
    pages = {name: text for name, text in TEXTS.items() if name.endswith(".md")}

    expect_none(
        finding for name, text in pages.items() for finding in text_rules.page_titles(name, text)
    )


def test_the_thing_that_acts_is_named() -> None:
    findings = (
        finding
        for name, text in TEXTS.items()
        if "/results/" not in name
        for finding in text_rules.odd_words(name, text)
    )

    expect_none(excused(findings, budgets.ODD_WORDS))


def test_nothing_unwanted_is_kept() -> None:
    expect_none(
        finding for name, text in TEXTS.items() for finding in text_rules.unwanted_text(name, text)
    )
