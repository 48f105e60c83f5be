# SPDX-License-Identifier: MIT
"""What an app is told by its environment; needs nothing but Python, as all that apps import."""

from __future__ import annotations

import os
from typing import Final

#: Environment variables: where the jobs lie, where the record is, and which setting is meant.
STORE: Final = "COMPARISON_STORE"
RECORD: Final = "COMPARISON_RECORD"
QUICK: Final = "COMPARISON_QUICK"
#: Jobs that one worker runs at once, whatever it makes of them: coroutines, threads, processes.
SLOTS: Final = 4


def store_url() -> str:
    """The URL of the store to use."""
    return os.environ[STORE]


def record_path() -> str:
    """The file that every process appends to."""
    return os.environ[RECORD]


def is_quick() -> bool:
    """Whether to use the quickest sensible recovery instead of the default one."""
    return os.environ.get(QUICK) == "1"
