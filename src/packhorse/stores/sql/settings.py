# SPDX-License-Identifier: MIT
"""What tasks are set to, as plans read it: decoded once for each text."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from packhorse.stores.plan import Steps
from packhorse.stores.requests import EVERY_TASK, TaskSettings
from packhorse.stores.sql.dialect import Dialect
from packhorse.stores.sql.queue_row import DECODED_MAX
from packhorse.stores.sql.steps import Rows

__all__ = ["read_task_settings", "task_settings"]


def task_settings(dialect: Dialect, tasks: Iterable[str]) -> Steps[dict[str, TaskSettings]]:
    """The limits of those of these tasks that have some."""
    names = list(tasks)
    asked = (EVERY_TASK in names, dialect.many(names))
    rows = yield Rows(dialect.sql("task_settings"), asked)
    return {name: read_task_settings(text) for name, text in rows}


@lru_cache(maxsize=DECODED_MAX)
def read_task_settings(text: str) -> TaskSettings:
    """The limits of a task from their column."""
    return msgspec.json.decode(text, type=TaskSettings)
