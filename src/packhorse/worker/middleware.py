# SPDX-License-Identifier: MIT
"""What an app wraps around every handler: `async def middleware(ctx, proceed)`.

`await proceed()` runs the rest and returns the attempt's `Outcome`; it raises nothing of what the
handler did. A middleware watches and prepares, it decides nothing: whatever it raises, skips or
returns, the handler runs exactly once and its outcome stands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from packhorse.context import Context
from packhorse.outcome import Outcome
from packhorse.worker.attempt import Attempt

__all__ = ["Middleware", "MiddlewareChain", "Proceed"]

Proceed = Callable[[], Awaitable[Outcome]]
Middleware = Callable[[Context, Proceed], Awaitable[object]]
#: Told of each middleware that failed: the middleware, the attempt, the error.
Complaint = Callable[[Middleware, Attempt, BaseException], None]


class MiddlewareChain:
    """The middlewares of one worker, outermost first."""

    def __init__(self, middlewares: Sequence[Middleware], complain: Complaint) -> None:
        self._middlewares = tuple(middlewares)
        self._complain = complain

    def __bool__(self) -> bool:
        return bool(self._middlewares)

    async def run(self, attempt: Attempt, context: Context, handler: Proceed) -> Outcome:
        """Run the handler inside all middlewares."""
        proceed = handler
        for middleware in reversed(self._middlewares):
            proceed = self._wrapped(middleware, attempt, context, proceed)
        return await proceed()

    def _wrapped(
        self, middleware: Middleware, attempt: Attempt, context: Context, inner: Proceed
    ) -> Proceed:
        async def run_one() -> Outcome:
            once = _Once(inner)
            try:
                await middleware(context, once)
            except BaseException as error:  # noqa: BLE001 - it never touches the job
                if attempt.ending is None or not isinstance(error, asyncio.CancelledError):
                    self._complain(middleware, attempt, error)
            return await once()

        return run_one


class _Once:
    """Runs the rest once, however often it is asked."""

    def __init__(self, inner: Proceed) -> None:
        self._inner = inner
        self._answer: asyncio.Future[Outcome] | None = None

    async def __call__(self) -> Outcome:
        if self._answer is not None:
            return await asyncio.shield(self._answer)
        answer = self._answer = asyncio.get_running_loop().create_future()
        # No exception path: the innermost call never raises, and neither does a wrapped one.
        outcome = await self._inner()
        answer.set_result(outcome)
        return outcome
