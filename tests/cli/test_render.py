# SPDX-License-Identifier: MIT
"""How answers look."""

from __future__ import annotations

import click
import pytest

from packhorse.cli.output import age, ages, one_line, print_fields, print_table, span_ms, the_one
from tests.cli.project import Project

ROWS = [("a", "short"), ("b", "a rather long remark about nothing in particular")]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0s"),
        (59.9, "59s"),
        (61, "1m 1s"),
        (3600, "1h 0m"),
        (90061, "1d 1h"),
        (-5, "0s"),
    ],
)
def test_ages_have_two_units(seconds: float | None, text: str) -> None:
    assert age(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [({}, "-"), ({"normal": 61.0}, "1m 1s"), ({"high": 2.0, "low": 90.0}, "high 2s, low 1m 30s")],
)
def test_ages_of_several_are_named_unless_there_is_but_the_usual_one(
    seconds: dict[str, float], text: str
) -> None:
    assert ages(seconds) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"), [(0.25, "0.25ms"), (999, "999ms"), (1500, "1.5s"), (75000, "1m 15s")]
)
def test_short_spans_have_three_digits(milliseconds: float, text: str) -> None:
    assert span_ms(milliseconds) == text


def test_a_table_is_as_wide_as_it_needs_when_it_is_not_said_how_wide_the_terminal_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)

    print_table(("ID", "NOTE"), ROWS)

    assert capsys.readouterr().out.splitlines() == [
        "ID  NOTE",
        "a   short",
        "b   a rather long remark about nothing in particular",
    ]


def test_a_table_is_cut_to_the_columns_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")

    print_table(("ID", "NOTE"), ROWS)

    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) == 20
    assert lines[2] == "b   a rather long r…"


def test_a_last_column_that_may_not_be_cut_goes_on_below(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")

    print_table(("ID", "NOTE"), [*ROWS, ("c", "'an-uncommonly-long-word'")], wrapped=True)

    assert capsys.readouterr().out.splitlines() == [
        "ID  NOTE",
        "a   short",
        "b   a rather long",
        "    remark about",
        "    nothing in",
        "    particular",
        "c   'an-uncommonly-long-word'",
    ]


def test_what_a_job_says_cannot_steer_the_terminal() -> None:
    assert one_line("red \x1b[31m and\nnew\tline\x9b") == "red  [31m and new line "


def test_fields_without_a_value_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields([("id", "x"), ("worker", None), ("attempts", 0), ("tags", ())])

    assert capsys.readouterr().out == "id        x\nattempts  0\n"


@pytest.mark.parametrize(
    ("environment", "flags", "colored"),
    [
        ({}, (), False),
        ({"FORCE_COLOR": "1"}, (), True),
        ({"FORCE_COLOR": "0"}, (), False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, (), False),
        ({"FORCE_COLOR": "1"}, ("--no-color",), False),
    ],
)
def test_colours_are_used_only_where_they_are_wanted(
    project: Project, environment: dict[str, str], flags: tuple[str, ...], *, colored: bool
) -> None:
    project.run("enqueue", "add", "1")

    result = project.run(*flags, "jobs", "list", env=environment)

    assert ("\x1b[36mqueued" in result.stdout) is colored


def test_a_part_of_an_id_is_completed_if_only_one_fits() -> None:
    known = ("01a1e9e0-ccaa", "01a1e9e0-f3f4", "nightly")

    assert the_one("ccaa", known) == "01a1e9e0-ccaa"
    assert the_one("nightly", known) == "nightly"
    assert the_one("gone", known) == "gone"
    assert the_one("caa", known) == "caa"  # too little of it
    with pytest.raises(click.UsageError, match="part of several ids"):
        the_one("01a1", known)
