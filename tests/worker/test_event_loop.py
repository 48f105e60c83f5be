# SPDX-License-Identifier: MIT
"""A loop that is ended from within: the worker is told, and goes on to its own end."""

from __future__ import annotations

import asyncio
import sys

import pytest

from packhorse.runtime.worker.event_loop import run_to_end


def test_work_whose_loop_is_ended_from_within_is_told_and_goes_on_to_its_end() -> None:
    told: list[str] = []

    async def work() -> str:
        async def leave() -> None:
            sys.exit("enough")

        leaving = asyncio.create_task(leave())
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as cancelled:
            told.append(str(cancelled))
        await asyncio.sleep(0)
        assert isinstance(leaving.exception(), SystemExit)
        return "settled"

    assert run_to_end(work) == "settled"
    assert told == ["SystemExit: enough"]


def test_an_error_of_the_work_itself_is_raised() -> None:
    async def work() -> None:
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        run_to_end(work)


def test_a_loop_that_cannot_be_made_is_told_as_it_is() -> None:
    async def work() -> None: ...

    def no_loop() -> asyncio.AbstractEventLoop:
        raise OSError("too many open files")

    with pytest.raises(OSError, match="too many open files"):
        run_to_end(work, no_loop)
