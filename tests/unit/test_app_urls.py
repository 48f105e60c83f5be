# SPDX-License-Identifier: MIT
"""Which store an app means: what it is given, the environment, or a file here."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packhorse import ConfigError, Packhorse
from packhorse.stores.memory import MemoryStore
from packhorse.stores.opening import open_store
from tests.servers.postgres import postgres_url
from tests.servers.redis import redis_url


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PACKHORSE_URL", raising=False)
    monkeypatch.delenv("PACKHORSE_URL_FILE", raising=False)
    return tmp_path


@pytest.mark.req("S3-42")
def test_the_store_is_a_file_here_unless_told_otherwise(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Packhorse().store.label == f"sqlite:///{here}/packhorse.db"

    (here / "url").write_text("memory://\n")
    monkeypatch.setenv("PACKHORSE_URL_FILE", str(here / "url"))
    assert Packhorse().store.label == "memory://"

    monkeypatch.delenv("PACKHORSE_URL_FILE")
    monkeypatch.setenv("PACKHORSE_URL", "memory://")
    assert Packhorse().store.label == "memory://"
    assert Packhorse("sqlite:///given.db").store.label == f"sqlite:///{here}/given.db"


@pytest.mark.parametrize("url", ["sqlite:///jobs.db?synchronous=NORMAL", None, "sqlite:///a%23b"])
def test_a_relative_path_is_fixed_when_the_app_is_made(
    here: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, url: Any
) -> None:
    odd = here / "r\u00e4umen #1?"
    odd.mkdir()
    monkeypatch.chdir(odd)
    app = Packhorse(url)
    app.task(name="work")(len)

    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        app.tasks["work"].enqueue("a")
    label = app.store.label
    app.close()

    assert label.startswith(f"sqlite:///{odd}/")
    assert list(elsewhere.iterdir()) == []
    assert Packhorse(app.url).store.label == label


@pytest.mark.parametrize("url", ["sqlite:////tmp/jobs.db", "sqlite:///%2Ftmp/jobs.db", "memory://"])
def test_an_absolute_url_stays_as_it_is_given(url: str) -> None:
    assert Packhorse(url).url == url


def test_an_app_on_a_store_that_was_given_has_no_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKHORSE_URL", "sqlite:///elsewhere.db")

    assert Packhorse(store=MemoryStore()).url is None


def test_an_app_may_be_made_where_there_is_no_folder_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    assert Packhorse("memory://").url == "memory://"


def test_an_environment_that_cannot_be_meant_is_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKHORSE_URL_FILE", str(here / "missing"))
    with pytest.raises(ConfigError, match=r"PACKHORSE_URL_FILE names .* cannot be read"):
        Packhorse()
    (here / "missing").write_text(" \n")
    with pytest.raises(ConfigError, match="is empty"):
        Packhorse()
    monkeypatch.setenv("PACKHORSE_URL", "memory://")
    with pytest.raises(ConfigError, match="are both set"):
        Packhorse()


@pytest.mark.req("S3-42")
def test_the_file_of_a_url_is_told_without_secrets(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "bytes").write_bytes(b"postgresql://anna:s3cret\xff@db/shop")

    for path, told in (
        (str(here / "bytes"), "is not a text in UTF-8"),
        ("postgresql://anna:s3cret@db/shop", "names a URL and not a file"),
    ):
        monkeypatch.setenv("PACKHORSE_URL_FILE", path)
        with pytest.raises(ConfigError, match=told) as refused:
            Packhorse()
        assert "s3cret" not in str(refused.value)
        assert refused.value.__context__ is None


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_name_of_a_store_is_not_the_default(
    monkeypatch: pytest.MonkeyPatch, empty: str
) -> None:
    with pytest.raises(ConfigError, match="the URL of the store is empty"):
        Packhorse(empty)

    for variable in ("PACKHORSE_URL", "PACKHORSE_URL_FILE"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, empty)
            with pytest.raises(ConfigError, match=f"{variable} is set and empty"):
                Packhorse()


@pytest.mark.parametrize("ask", [postgres_url.__wrapped__, redis_url.__wrapped__])
def test_an_empty_name_of_a_test_server_is_a_mistake(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[], str]
) -> None:
    for variable in ("PACKHORSE_TEST_POSTGRES", "PACKHORSE_TEST_REDIS"):
        monkeypatch.setenv(variable, "")

    with pytest.raises(RuntimeError, match="is set and empty"):
        ask()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql+psycopg://ann:secret@db/shop", "leave it out: postgresql://..."),
        ("sqlite+aiosqlite:///jobs.db", "leave it out: sqlite://..."),
        ("data/x.db", "if 'data/x.db' is a SQLite file, write sqlite:///data/x.db"),
        ("amqp://ann:secret@mq", "a URL that begins with 'amqp'; write sqlite:///jobs.db"),
        ("ann:secret@db", "write sqlite:///jobs.db"),
    ],
)
def test_a_url_of_no_known_store_is_refused_with_what_to_write(url: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        open_store(url)

    assert words in str(raised.value)
    assert "secret" not in str(raised.value)
