# SPDX-License-Identifier: MIT
"""What an app sets up before the first job and takes down after the last.

A lifespan hook takes the app, or nothing, and is an async or sync generator function, or returns
an async or sync context manager. What it yields, if a mapping, is part of every `ctx.state`.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from packhorse.errors import ConfigError

__all__ = ["Lifespan", "entered"]

Lifespan = Callable[..., Any]


@contextlib.asynccontextmanager
async def entered(lifespans: Sequence[Lifespan], app: object) -> AsyncIterator[Mapping[str, Any]]:
    """Enter all hooks in order, and leave them in the opposite one, whatever happened between."""
    state: dict[str, Any] = {}
    async with contextlib.AsyncExitStack() as stack:
        for lifespan in lifespans:
            yielded = await _enter(lifespan, app, stack)
            if isinstance(yielded, Mapping):
                state.update(yielded)
        yield MappingProxyType(state)


async def _enter(lifespan: Lifespan, app: object, stack: contextlib.AsyncExitStack) -> Any:
    made = lifespan(app) if inspect.signature(lifespan).parameters else lifespan()
    if inspect.isasyncgen(made):
        return await stack.enter_async_context(contextlib.asynccontextmanager(lambda: made)())
    if inspect.isgenerator(made):
        return stack.enter_context(contextlib.contextmanager(lambda: made)())
    if hasattr(made, "__aenter__"):
        return await stack.enter_async_context(made)
    if hasattr(made, "__enter__"):
        return stack.enter_context(made)
    raise ConfigError(
        f"lifespan hook {getattr(lifespan, '__qualname__', lifespan)!r} is no generator function "
        "and returns no context manager; let it yield once"
    )
