# SPDX-License-Identifier: MIT
"""The Redis store keeps its promises on a cluster of three nodes too.

All keys of a namespace lie on one node, so most of what can be tried there is tried on a single
server already: ordinary runs take a sample, `--conformance all` takes every topic.
Each test has a namespace of its own, on whichever node that falls.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from packhorse.testing import conformance
from packhorse.testing.virtual_clock import VirtualClock
from tests.conformance.namespaces import NamespaceHarness
from tests.servers.redis import redis_nodes


def harness(folder: Path, clock: VirtualClock) -> NamespaceHarness:
    """A namespace on a cluster."""
    return NamespaceHarness(clock, *(node.url for node in redis_nodes()))


# The state machines take their time on a busy machine.
pytestmark = pytest.mark.timeout(600)

TestRedisCluster = conformance.suite(harness)
