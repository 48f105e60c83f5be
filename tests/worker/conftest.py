# SPDX-License-Identifier: MIT
"""The app of a test, on PostgreSQL in a schema that another test has used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from packhorse import Packhorse
from packhorse.testing import TestApp, use
from packhorse.testing.places import own_place
from tests.servers.schemas import schemas


@pytest.fixture
def packhorse_app(
    request: pytest.FixtureRequest, packhorse_target: Packhorse, packhorse_url: str
) -> Iterator[TestApp]:
    """As the plugin's, but without making a schema, which takes longer than most tests do."""
    with _place(request, packhorse_url) as url, use(packhorse_target, url) as app:
        yield app


@contextmanager
def _place(request: pytest.FixtureRequest, url: str) -> Iterator[str]:
    if url.startswith("postgresql:"):
        schema = schemas().take()
        yield schemas().url_of(schema)
        schemas().give(schema)
    else:
        with own_place(url, lambda: request.getfixturevalue("tmp_path")) as own:
            yield own
