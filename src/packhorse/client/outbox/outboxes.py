# SPDX-License-Identifier: MIT
"""The outboxes of an app: looked at for jobs that the store does not know yet."""

from __future__ import annotations

import threading
from functools import partial
from typing import Final, TypeVar

from packhorse.client.asides import Aside, AsideSteps, ask, ask_async
from packhorse.client.outbox.outbox import Outbox
from packhorse.stores.intake import alias_of
from packhorse.stores.plan import Plan
from packhorse.stores.protocol import Store

T = TypeVar("T")

#: A verb about a job that is not found drains so many batches, or waits for another process that
#: does, which is two seconds then.
_LOOKS_MAX: Final = 100
_LOOK_S: Final = 0.02


class Outboxes(tuple[Outbox, ...]):
    """All outboxes of an app."""

    __slots__ = ()

    def find(self, store: Store, plan: Plan[T], answer: T) -> T:
        """The answer of a verb about one job that was missed, once the outboxes are drained."""
        return ask(store, self._finding(store, plan, answer))

    async def afind(self, store: Store, plan: Plan[T], answer: T) -> T:
        """As `find`, without blocking the event loop."""
        return await ask_async(store, self._finding(store, plan, answer))

    def drain(self, store: Store) -> int:
        """Deliver all that waits, within bounds; says how many requests that were."""
        return ask(store, self._draining(store))

    async def adrain(self, store: Store) -> int:
        """As `drain`, without blocking the event loop."""
        return await ask_async(store, self._draining(store))

    def _finding(self, store: Store, plan: Plan[T], answer: T) -> AsideSteps[T]:
        named = plan.named
        if named is None:
            return answer
        if (yield from self._draining(store)):
            answer = yield plan
        if named.missed(answer):
            holder = yield store.records.record(alias_of(named.job_id))
            if holder is not None:
                answer = yield named.again(holder.document.decode())
        return answer

    def _draining(self, store: Store) -> AsideSteps[int]:
        """Also what another process is about to deliver is waited for: it is counted as one."""
        drained = 0
        for outbox in self:
            for _ in range(_LOOKS_MAX):
                delivered = yield Aside(partial(outbox.drain, store))
                drained += delivered
                if delivered:
                    continue
                if (yield Aside(outbox.is_empty)):
                    break
                drained += 1
                yield Aside(partial(threading.Event().wait, _LOOK_S))
        return drained
