# SPDX-License-Identifier: MIT
"""How many jobs run at once. Running jobs are counted, not slots, so a crash leaks nothing."""

from __future__ import annotations

from packhorse.errors import ConfigError

__all__ = ["check_concurrency", "has_room"]


def has_room(running: int, limit: int) -> bool:
    """Whether one more may run; `running` counts processing jobs, whoever holds them."""
    return running < limit


def check_concurrency(limit: int | None, *, setting: str = "concurrency") -> None:
    """Refuse a limit that lets nothing run; None is no limit."""
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ConfigError(
            f"{setting} is {limit!r}; give 1 or more, or leave it out for no limit "
            "(to stop a queue, pause it)"
        )
