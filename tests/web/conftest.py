# SPDX-License-Identifier: MIT
"""An app with its web application, on SQLite."""

from __future__ import annotations

import pytest

from packhorse.testing import TestApp
from tests.web.support import Web, declare, token


@pytest.fixture
def packhorse_url() -> str:
    """SQLite; this overrides the plugin's own."""
    return "sqlite://"


@pytest.fixture
def web(packhorse_app: TestApp) -> Web:
    """Asked with a token of an admin."""
    declare(packhorse_app)
    return Web(packhorse_app, token=token(packhorse_app, "admin"))
