# SPDX-License-Identifier: MIT
"""A connection that is made again serves the next call, whenever that comes."""

from __future__ import annotations

import asyncio

import pytest

from packhorse.stores.redis.pipeline import Connecting
from packhorse.stores.redis.store import RedisStore


@pytest.mark.req("S3-28")
@pytest.mark.timeout(20)
async def test_who_asks_in_the_very_round_in_which_the_connection_is_made_is_answered(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.migrate()
    tell, asked = Connecting._tell, []

    def tell_and_ask(connecting: Connecting, trouble: BaseException | None) -> None:
        # Queued before what the event loop does about the connection: no call has taken it yet.
        asked.append(asyncio.ensure_future(store.arun(store.queues.depth("default"))))
        tell(connecting, trouble)

    monkeypatch.setattr(Connecting, "_tell", tell_and_ask)

    assert await store.arun(store.queues.depth("default")) == 0
    assert [await each for each in asked] == [0]
