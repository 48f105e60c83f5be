# SPDX-License-Identifier: MIT
"""The Redis store keeps the promises of a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from packhorse.testing import conformance
from packhorse.testing.virtual_clock import VirtualClock
from tests.conformance.namespaces import NamespaceHarness
from tests.servers.redis import redis_url


def harness(folder: Path, clock: VirtualClock) -> NamespaceHarness:
    """A namespace on one server."""
    return NamespaceHarness(clock, redis_url())


# The state machines take their time on a busy machine.
pytestmark = pytest.mark.timeout(600)

TestRedis = conformance.suite(harness)
