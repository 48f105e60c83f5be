# SPDX-License-Identifier: MIT
"""Apps for hosts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hosting.support import Yard


@pytest.fixture
def yard() -> Iterator[Yard]:
    made = Yard()
    yield made
    made.app.close()
