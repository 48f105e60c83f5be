# SPDX-License-Identifier: MIT
"""What a dying process wrote about its threads, cut down to what its user wrote."""

from __future__ import annotations

from typing import Final

__all__ = ["readable_stacks"]

#: Frames from here outward are ours: who called the handler is known.
_OWN: Final = ("/packhorse/worker/", "/packhorse/cli/", "/packhorse/supervisor/")
#: Frames of threads that wait for work.
_IDLE: Final = ("/packhorse/stores/", "/concurrent/futures/thread.py", "/threading.py")
_FRAME: Final = "  File "


def readable_stacks(text: str) -> str:
    """The threads that were in user code, each down to the frame that called the handler."""
    sections = [_cut(section) for section in text.split("\n\n")]
    return "\n\n".join(section for section in sections if section)


def _cut(section: str) -> str:
    lines = section.splitlines()
    frames = [line for line in lines if line.startswith(_FRAME)]
    if not frames:
        # The first line says what happened; the last ones list modules.
        return section if section.startswith("Fatal") else ""
    kept = []
    for line in lines:
        if line.startswith(_FRAME) and any(own in line for own in _OWN):
            break
        kept.append(line)
    of_users = [
        line for line in kept if line.startswith(_FRAME) and not any(own in line for own in _IDLE)
    ]
    return "\n".join(kept) if of_users else ""
