# SPDX-License-Identifier: MIT
"""A queue as a submit sees it, and what queues are set to: decoded once for each text."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from packhorse.policies.retention import Retention
from packhorse.stores.requests import QueueSettings

__all__ = ["DECODED_MAX", "QueueRow", "queue_settings", "retention_of"]

#: Different settings kept decoded; a store has far fewer.
DECODED_MAX: Final = 1024


class QueueRow(NamedTuple):
    """A queue as a submit sees it."""

    settings: QueueSettings
    closed: bool
    tenanted: bool  #: jobs with tenants were submitted to it, so passes are dealt
    shelf: bool  #: it is some queue's dead-letter shelf
    limited_tasks: bool  #: some task has limits of its own
    last: int = 0  #: the last number given out, as sequence or place, where the store keeps it here
    lined: bool = False  #: jobs that gates may hold back were submitted to it, where that matters

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


@lru_cache(maxsize=DECODED_MAX)
def queue_settings(name: str, text: str | None) -> QueueSettings:
    """Settings from their column; an undeclared queue has the defaults."""
    if text is None:
        return QueueSettings(name)
    return msgspec.json.decode(text, type=QueueSettings)


def retention_of(text: str | None) -> Retention:
    """How long a queue with these settings keeps what is over."""
    return queue_settings("", text).retention or Retention()
