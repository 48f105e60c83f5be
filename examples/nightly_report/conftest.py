# SPDX-License-Identifier: MIT
"""The tests use the example's app; `packhorse_app` puts it on a store of each test's own."""

from __future__ import annotations

import pytest

from examples.nightly_report.jobs import app
from packhorse import Packhorse


@pytest.fixture
def packhorse_target() -> Packhorse:
    """The app to be tested."""
    return app
