# SPDX-License-Identifier: MIT
"""Every store for `packhorse_app`, in the tests of a module that imports this fixture."""

from __future__ import annotations

import pytest

from tests.servers.postgres import postgres_url
from tests.servers.redis import redis_url


@pytest.fixture(name="packhorse_url", params=["memory", "sqlite", "postgres", "redis"])
def every_store(request: pytest.FixtureRequest) -> str:
    """Every store; this overrides the plugin's own."""
    match request.param:
        case "postgres":
            return postgres_url()
        case "redis":
            return redis_url()
        case scheme:
            return f"{scheme}://"
