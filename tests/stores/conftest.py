# SPDX-License-Identifier: MIT
"""Apps on one store, for what is shown on every store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from packhorse import Packhorse
from packhorse.stores.memory import MemoryStore
from tests.servers.urls import store_url_of


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def store_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store_url(store_kind: str, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store; in memory it is no use to a second app."""
    with store_url_of(store_kind, tmp_path) as url:
        yield url


@pytest.fixture
def new_app(store_kind: str, store_url: str) -> Iterator[Callable[[], Packhorse]]:
    """Makes apps that share one empty store, as processes would."""
    made: list[Packhorse] = []
    memory = MemoryStore()

    def make() -> Packhorse:
        app = Packhorse(store=memory) if store_kind == "memory" else Packhorse(store_url)
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()
