# SPDX-License-Identifier: MIT
"""Warnings for the code that uses an app, which name the line of that code."""

from __future__ import annotations

import inspect
import re
import warnings
from typing import Final

from packhorse.client.connection import Connection
from packhorse.core.text import nearest

#: Names that have less in common are taken for different ones.
_ALIKE_MIN: Final = 0.7
_DIGITS: Final = re.compile(r"\d+")


def warn_of_mistyped_queue(connection: Connection, queue: str) -> None:
    """Warn of a queue that this app does not declare, if it nearly has the name of one it does.

    It is no error: another program may declare it, or nobody.
    """
    known = {*connection.queues, *connection.registry.queues}
    if not queue or queue in known:
        return
    meant = nearest(queue, known, alike=_ALIKE_MIN)
    # `import-1` beside `import-2` is no mistake.
    if meant is not None and _DIGITS.sub("", meant) != _DIGITS.sub("", queue):
        warnings.warn(
            f"no queue {queue!r} is declared here; did you mean {meant!r}? If not, declare it with "
            f"app.queue({queue!r})",
            UserWarning,
            stacklevel=user_stacklevel(),
        )


def user_stacklevel() -> int:
    """Return the stack level of the first caller outside this package, for `warnings.warn`."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("packhorse."):
        level, frame = level + 1, frame.f_back
    return level
