# SPDX-License-Identifier: MIT
"""What this process does just now: it forks, or this thread runs an event loop."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable


def at_fork(forget: Callable[[], None]) -> None:
    """Call a method in every forked child, for as long as its object lives."""
    method = weakref.WeakMethod(forget)

    def call() -> None:
        bound = method()
        if bound is not None:
            bound()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


def in_event_loop() -> bool:
    """Whether this thread runs an event loop, which a blocking call would hold up."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:  # never imported, so nothing runs on it
        return False
    # Asked at every submit: `get_running_loop` would raise, which costs ten times as much.
    return asyncio.events._get_running_loop() is not None  # noqa: SLF001 - public in `events`
