# SPDX-License-Identifier: MIT
"""Where a peer's jobs lie: an empty database of the run's server, named by the environment."""

from __future__ import annotations

import os
from typing import Final

#: Environment variable that names it.
SERVER: Final = "BENCHMARK_SERVER"


def server_url() -> str:
    """The URL of the database to use."""
    return os.environ[SERVER]
