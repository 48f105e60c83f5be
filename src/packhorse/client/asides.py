# SPDX-License-Identifier: MIT
"""Steps that ask a store, and steps beside it that block: run in a thread, or on an event loop."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

from packhorse.core.driving import adrive, drive
from packhorse.stores.plan import Plan
from packhorse.stores.protocol import Store

T = TypeVar("T")


class Aside(NamedTuple):
    """Something that may block, such as work on another database."""

    work: Callable[[], Any]


AsideSteps = Generator[Plan[Any] | Aside, Any, T]


def ask(store: Store, steps: AsideSteps[T]) -> T:
    """Run steps in this thread."""
    return drive(steps, lambda step: step.work() if isinstance(step, Aside) else store.run(step))


async def ask_async(store: Store, steps: AsideSteps[T]) -> T:
    """As `ask`, without blocking the event loop."""
    import asyncio  # noqa: PLC0415 - code that only submits does not pay for it

    async def execute(step: Plan[Any] | Aside) -> Any:
        if isinstance(step, Aside):
            return await asyncio.to_thread(step.work)
        return await store.arun(step)

    return await adrive(steps, execute)
