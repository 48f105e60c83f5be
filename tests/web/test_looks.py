# SPDX-License-Identifier: MIT
"""What is counted is kept: pages share one look, and what was done is seen at once."""

from __future__ import annotations

import asyncio

import pytest

from packhorse.web.count_cache import Look
from tests.web.support import Web
from tests.web.test_pages import form, page


class Counting:
    """Counts how often it is read, once it may go on."""

    def __init__(self) -> None:
        self.reads = 0
        self.may = asyncio.Event()
        self.may.set()

    async def read(self) -> int:
        self.reads += 1
        number = self.reads
        await self.may.wait()
        return number


async def test_all_that_ask_at_once_and_soon_share_one_look() -> None:
    look, counting = Look[int](), Counting()

    found = await asyncio.gather(*(look.get(counting.read) for _ in range(10)))

    assert [*found, await look.get(counting.read)] == [1] * 11
    assert counting.reads == 1


async def test_what_is_old_is_shown_while_it_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packhorse.web.count_cache._KEPT_S", 0.0)
    monkeypatch.setattr("packhorse.web.count_cache._TIMES", 0.0)
    look, counting = Look[int](), Counting()
    await look.get(counting.read)
    counting.may.clear()

    assert [await look.get(counting.read) for _ in range(3)] == [1, 1, 1]
    await asyncio.sleep(0)
    assert counting.reads == 2  # one is under way, however many ask
    monkeypatch.setattr("packhorse.web.count_cache._OLD_S", 0.0)
    waiting = asyncio.create_task(look.get(counting.read))
    counting.may.set()
    assert await waiting == 2


async def test_what_was_changed_meanwhile_is_looked_at_again() -> None:
    look, counting = Look[int](), Counting()
    counting.may.clear()
    waiting = asyncio.create_task(look.get(counting.read))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    look.forget()
    counting.may.set()

    assert await waiting == 2


async def test_an_error_is_told_to_who_waits_and_not_kept() -> None:
    look, counting = Look[int](), Counting()

    async def fail() -> int:
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        await look.get(fail)
    assert await look.get(counting.read) == 1


async def test_the_page_after_a_form_shows_what_was_done(web: Web) -> None:
    await web.app.tasks["add"].aenqueue(1, 2)
    before = await page(web, "/queues")
    await form(web, "/do/queues/default/pause")

    after = await page(web, "/queues")

    assert b"/do/queues/default/pause" in before.body
    assert b"/do/queues/default/resume" in after.body
