# SPDX-License-Identifier: MIT
"""The Redis store keeps its promises on Valkey too.

Valkey runs the same scripts as Redis does, and its version is newer than that of the bundled Redis:
ordinary runs take a sample, `--conformance all` takes every topic.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from packhorse.testing import conformance
from packhorse.testing.virtual_clock import VirtualClock
from tests.conformance.namespaces import NamespaceHarness
from tests.servers.redis import valkey_url


def harness(folder: Path, clock: VirtualClock) -> NamespaceHarness:
    """A namespace on one server."""
    return NamespaceHarness(clock, valkey_url())


# The state machines take their time on a busy machine.
pytestmark = pytest.mark.timeout(600)

TestValkey = conformance.suite(harness)
