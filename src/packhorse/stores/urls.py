# SPDX-License-Identifier: MIT
"""Which URL names an app's store: the one given, the environment's, or a file here."""

from __future__ import annotations

import os
from typing import Final

from packhorse.errors import ConfigError

DEFAULT_URL: Final = "sqlite:///packhorse.db"
_URL: Final = "PACKHORSE_URL"
_URL_FILE: Final = "PACKHORSE_URL_FILE"
_FILE: Final = "sqlite:///"


def chosen_url(url: str | None, folder: str) -> str:
    """Return the given URL, else the environment's, else the default; never an empty one."""
    if url is None:
        url = _url_from_environment()
    elif not url.strip():
        raise ConfigError(
            "the URL of the store is empty; give one such as sqlite:///jobs.db, or None for "
            f"{_URL} or the default"
        )
    return absolute_url(DEFAULT_URL if url is None else url, folder)


def absolute_url(url: str, folder: str) -> str:
    """Make the path of a SQLite URL absolute, so that a chdir does not change the file."""
    head, found, rest = url.partition(_FILE)
    if head or not found or not folder:
        return url
    from urllib.parse import quote, unquote  # noqa: PLC0415 - for this store alone

    name = unquote(rest.partition("?")[0])
    if name.startswith("/") or name in ("", ":memory:"):  # the store refuses the last two
        return url
    return f"{_FILE}{quote(os.fsencode(folder))}/{rest}"


def working_folder() -> str:
    """Return the current folder; empty if it was removed."""
    try:
        return os.getcwd()  # noqa: PTH109 - pathlib is slow to import
    except FileNotFoundError:
        return ""


def _url_from_environment() -> str | None:
    """Return the URL of the environment, or the content of the file that it names."""
    url, path = os.environ.get(_URL), os.environ.get(_URL_FILE)
    for name, value in ((_URL, url), (_URL_FILE, path)):
        if value is not None and not value.strip():
            raise ConfigError(f"{name} is set and empty; name a store in it, or unset it")
    if url is not None and path is not None:
        raise ConfigError(f"{_URL} and {_URL_FILE} are both set; keep one of them")
    if path is None:
        return url
    text = problem = ""
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib is slow to import
            text = file.read().strip()
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        problem = "is not a text in UTF-8"
    if not text:
        # A URL that was meant for the other variable is not shown, nor anything that holds it.
        named = "a URL and not a file" if "://" in path else repr(path)
        raise ConfigError(
            f"{_URL_FILE} names {named}, which {problem or 'is empty; put the URL in it'}"
        )
    return text
