# SPDX-License-Identifier: MIT
"""Which file a URL means, what is refused, and how a connection is set up."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from packhorse.errors import ConfigError
from packhorse.stores import open_store
from packhorse.stores.sqlite.connection import SqliteSettings, connect
from tests.unit.sqlite_support import sqlite_store, submitting


def path_of(url: str) -> Path:
    return SqliteSettings.from_url(url).path


def test_three_slashes_name_a_file_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert path_of("sqlite:///jobs.db") == tmp_path / "jobs.db"
    assert path_of("sqlite:///data/jobs.db") == tmp_path / "data" / "jobs.db"


def test_a_relative_path_is_fixed_when_the_store_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///jobs.db")

    monkeypatch.chdir(tmp_path / "elsewhere")
    store.migrate()

    assert (tmp_path / "jobs.db").exists()
    assert store.label == f"sqlite:///{tmp_path}/jobs.db"


def test_four_slashes_name_an_absolute_file() -> None:
    assert path_of("sqlite:////var/lib/jobs.db") == Path("/var/lib/jobs.db")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("a%20b.db", "a b.db"),
        ("50%25.db", "50%.db"),
        ("what%3F.db", "what?.db"),
        ("no%231.db", "no#1.db"),
        ("b%C3%BCcher.db", "bücher.db"),
        ("bücher.db", "bücher.db"),
        ("a+b.db", "a+b.db"),
        ("[1].db", "[1].db"),
    ],
)
def test_escaped_characters_mean_themselves(written: str, meant: str, tmp_path: Path) -> None:
    settings = SqliteSettings.from_url(f"sqlite:///{tmp_path}/{written}")

    connect(settings).close()

    assert settings.path == tmp_path / meant
    assert settings.path.exists()


def test_a_name_that_is_no_text_keeps_its_bytes() -> None:
    assert os.fsencode(path_of("sqlite:////var/%FF.db")) == b"/var/\xff.db"


@pytest.mark.parametrize(
    "url",
    [
        *("sqlite:", "sqlite://", "sqlite:///", "sqlite:///?synchronous=FULL"),
        *("sqlite:jobs.db", "sqlite:/jobs.db", "sqlite://jobs.db", "sqlite://host/jobs.db"),
        *("sqlite:///:memory:", "sqlite:///%3Amemory%3A", "sqlite:///a%00b.db", "sqlite://[x/y"),
        *("sqlite:///jobs.db#first", "sqlite:///jobs#1.db?synchronous=FULL"),
    ],
)
def test_a_url_that_names_no_file_is_refused_with_the_right_form(url: str) -> None:
    with pytest.raises(ConfigError, match=r"sqlite:///jobs\.db .*memory://") as raised:
        open_store(url)

    assert repr(url) in str(raised.value)


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("timeout=5", "timeout"),
        ("synchronous=maybe", "synchronous=MAYBE"),
        ("synchronous=", "synchronous="),
        ("mode=ro&synchronous=FULL", "mode"),
        ("nonsense", "nonsense"),
    ],
)
def test_an_unknown_option_is_refused_by_name(query: str, named: str) -> None:
    with pytest.raises(ConfigError, match=r"there are synchronous .* and busy_timeout") as raised:
        open_store(f"sqlite:///jobs.db?{query}")

    assert named in str(raised.value)


@pytest.mark.parametrize("span", ["soon", "-1s", ""])
def test_a_busy_timeout_that_is_no_span_is_refused_by_name(span: str) -> None:
    with pytest.raises(ConfigError, match="busy_timeout"):
        open_store(f"sqlite:///jobs.db?busy_timeout={span}")


def test_what_is_not_said_is_safe_and_patient(tmp_path: Path) -> None:
    settings = SqliteSettings.from_url(f"sqlite:///{tmp_path}/jobs.db")

    assert pragmas(settings) == {"journal_mode": "wal", "synchronous": 2, "busy_timeout": 10_000}


@pytest.mark.parametrize(
    ("query", "synchronous", "busy_timeout"),
    [
        ("synchronous=NORMAL", 1, 10_000),
        ("synchronous=normal&busy_timeout=250ms", 1, 250),
        ("synchronous=OFF&busy_timeout=0", 0, 0),
        ("synchronous=EXTRA&busy_timeout=1.5", 3, 1_500),
        # What SQLite keeps in 32 bits must not overflow into no patience at all.
        ("busy_timeout=50d", 2, 1_000_000_000),
    ],
)
def test_options_reach_every_connection(
    query: str, synchronous: int, busy_timeout: int, tmp_path: Path
) -> None:
    settings = SqliteSettings.from_url(f"sqlite:///{tmp_path}/jobs.db?{query}")

    assert pragmas(settings) == {
        "journal_mode": "wal",
        "synchronous": synchronous,
        "busy_timeout": busy_timeout,
    }


def pragmas(settings: SqliteSettings) -> dict[str, object]:
    """What a new connection says about itself."""
    with closing(connect(settings)) as connection:
        names = ("journal_mode", "synchronous", "busy_timeout")
        return {name: connection.execute(f"pragma {name}").fetchone()[0] for name in names}


@pytest.mark.parametrize(
    ("options", "survives"), [("", "every commit"), ("?synchronous=NORMAL", "not every commit")]
)
def test_the_store_says_what_survives_a_power_cut(
    options: str, survives: str, tmp_path: Path
) -> None:
    store = sqlite_store(tmp_path, options)
    store.run(submitting(store, "job"))

    facts = store.facts()
    store.close()

    assert facts["survives a power cut"].startswith(survives)
    assert facts["file"] == str(tmp_path / "jobs.db")
    assert facts["writable"] == "yes"


def test_opening_a_store_touches_nothing_before_it_is_used(tmp_path: Path) -> None:
    sqlite_store(tmp_path).close()

    assert list(tmp_path.iterdir()) == []


def test_an_sqlite_too_old_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlite3.sqlite_version_info", (3, 34, 1))

    with pytest.raises(ConfigError, match=r"needs 3\.35 or newer: use a Python built"):
        sqlite_store(tmp_path).migrate()
