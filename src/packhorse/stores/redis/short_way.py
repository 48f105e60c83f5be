# SPDX-License-Identifier: MIT
"""Whether to try the short way of a verb first, from what it came to lately.

The short scripts do what plain queues need and nothing else; a queue with limits sends them back,
which costs a round trip. So after one was sent back the next ones take the long way at once.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

__all__ = ["ShortWay"]

#: How often the long way is taken at once, before the short one is tried again.
_PASSED_BY: Final = 64
#: Names that are remembered; beyond them all is forgotten, which costs round trips only.
_NAMES_MAX: Final = 1024


class ShortWay:
    """Remembers, for one store object, which names were sent back. Threads may share it."""

    def __init__(self, *, open_at_all: bool = True) -> None:
        self._open_at_all = open_at_all
        self._left: dict[Hashable, int] = {}

    def worth_trying(self, name: Hashable) -> bool:
        """Whether the short way may be open."""
        left = self._left.get(name, 0)
        if left > 0:
            self._left[name] = left - 1
        return self._open_at_all and left == 0

    def closed(self, name: Hashable) -> None:
        """It was not."""
        if len(self._left) >= _NAMES_MAX:
            self._left.clear()
        self._left[name] = _PASSED_BY
