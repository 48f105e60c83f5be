# SPDX-License-Identifier: MIT
"""What queues and tasks are set to, as plans read it: decoded once for each text."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from packhorse.policies.retention import Retention
from packhorse.stores.plan import Steps
from packhorse.stores.postgres.statements import Rows, sql
from packhorse.stores.requests import EVERY_TASK, QueueSettings, TaskSettings

__all__ = ["QueueRow", "queue_rows", "queue_settings", "retention_of", "task_settings"]

#: Different settings kept decoded; a store has far fewer.
_DECODED_MAX: Final = 1024


class QueueRow(NamedTuple):
    """A queue as a submit sees it."""

    settings: QueueSettings
    closed: bool
    tenanted: bool  #: jobs with tenants were submitted to it, so passes are dealt
    lined: bool  #: jobs that gates may hold back were submitted to it
    shelf: bool  #: it is some queue's dead-letter shelf
    limited_tasks: bool  #: some task has limits of its own

    @property
    def may_refuse(self) -> bool:
        return self.shelf or self.closed or self.settings.max_depth is not None

    @property
    def ranks_specially(self) -> bool:
        """Whether more than its priority decides where a job stands, or whether it stands."""
        return self.tenanted or self.settings.ageing_us is not None or self.drops

    @property
    def gates_every_job(self) -> bool:
        """Whether jobs without keys may be held back too, so that they form lines."""
        return self.limited_tasks or self.settings.tenant_rate is not None

    @property
    def drops(self) -> bool:
        return self.settings.on_full == "drop" and self.settings.max_depth is not None

    def without_depth(self) -> QueueRow:
        """For a job that is let in however many wait."""
        settings = msgspec.structs.replace(self.settings, max_depth=None)
        return self._replace(settings=settings)

    @property
    def deals_passes(self) -> bool:
        return self.tenanted and self.settings.fair and self.settings.ageing_us is None


def queue_rows(queues: Iterable[str]) -> Steps[dict[str, QueueRow]]:
    """The queues of these names, known or not."""
    rows = yield Rows(sql("queue_rows"), (list(queues),))
    return {
        name: QueueRow(queue_settings(name, settings), *others) for name, settings, *others in rows
    }


@lru_cache(maxsize=_DECODED_MAX)
def queue_settings(name: str, text: str | None) -> QueueSettings:
    """Settings from their column; an undeclared queue has the defaults."""
    if text is None:
        return QueueSettings(name)
    return msgspec.json.decode(text, type=QueueSettings)


def retention_of(text: str | None) -> Retention:
    """How long a queue with these settings keeps what is over."""
    return queue_settings("", text).retention or Retention()


def task_settings(tasks: Iterable[str]) -> Steps[dict[str, TaskSettings]]:
    """The limits of those of these tasks that have some."""
    names = list(tasks)
    rows = yield Rows(sql("task_settings"), (EVERY_TASK in names, names))
    return {name: _task_settings(text) for name, text in rows}


@lru_cache(maxsize=_DECODED_MAX)
def _task_settings(text: str) -> TaskSettings:
    return msgspec.json.decode(text, type=TaskSettings)
