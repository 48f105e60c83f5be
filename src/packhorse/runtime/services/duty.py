# SPDX-License-Identifier: MIT
"""Who of all workers does a service's work: a record says it, for a short time.

That saves the others the work and decides nothing: what a service writes checks versions or lines
of its own, so that two workers that both believe to be on duty do nothing twice.
"""

from __future__ import annotations

from typing import Final

from packhorse.core.clock import SECOND_US, Clock
from packhorse.core.policies.records import Put, RecordId
from packhorse.stores.protocol import Store

#: How long a worker that is not on duty waits for the one that is.
OFF_DUTY_S: Final = 1.0
#: One on duty says so again before this has passed, or another one takes over. It is short, since
#: what a killed worker had on duty stands still so long; who has nothing to do says nothing.
_DUTY_US: Final = 3 * SECOND_US


class Duty:
    """Whether this worker is the one that does the work of `service`."""

    def __init__(
        self, store: Store, clock: Clock, service: str, worker: str, hold_us: int = _DUTY_US
    ) -> None:
        self._store = store
        self._monotonic = clock.monotonic
        self._named = RecordId("duty", "", service)
        self._worker = worker.encode()
        self._hold_us = hold_us
        self._until = float("-inf")

    async def is_mine(self) -> bool:
        """Say that this worker is on duty, unless another one is."""
        now = self._monotonic()
        if now < self._until:
            return True
        records = self._store.records
        record = await self._store.arun(records.record(self._named))
        if record is not None and record.document != self._worker:
            return False
        version = 0 if record is None else record.version
        put = Put(self._named, self._worker, version, keep_us=self._hold_us)
        if not (await self._store.arun(records.change([put]))).applied:
            return False
        self._until = now + self._hold_us / SECOND_US / 2
        return True
