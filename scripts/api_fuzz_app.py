# SPDX-License-Identifier: MIT
"""The example shop, and what it lacks for `scripts.api_fuzz`: a signal, a topic, an alert."""

from __future__ import annotations

from typing import Final

from examples.shop.jobs import app
from packhorse.testing import use
from tests.web.support import declare

__all__ = ["APP", "app", "more"]

APP: Final = "scripts.api_fuzz_app:app"

declare(app)


def more(url: str) -> str:
    """Submit, into a store that the shop has filled, a job that waits for a signal: its id."""
    with use(app, url):
        return app.tasks["waits"].enqueue().id
