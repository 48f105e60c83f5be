# SPDX-License-Identifier: MIT
"""What every event is."""

from __future__ import annotations

from typing import ClassVar

import msgspec

__all__ = [
    "Event",
]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened."""

    name: ClassVar[str] = ""

    worker_id: str = ""
