# SPDX-License-Identifier: MIT
"""`ctx.transaction()`: rows of a handler's own and the end of its job, committed together.

    async with ctx.transaction() as tx:              # `with` in plain functions
        await tx.connection.execute("insert into ...")
        tx.complete(result)

Both are there or neither is, whenever the process dies. See `stores.transactions` for what a store
does, and `runtime.worker.transactions` for what a worker makes of it.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Self

from packhorse.core.process import in_event_loop
from packhorse.errors import UsageError
from packhorse.hosts import HostTransaction

__all__ = ["JobTransaction"]


class JobTransaction:
    """A block whose rows commit with the job's completion."""

    __slots__ = ("_completion", "_host", "_pid", "open", "over")

    def __init__(self, host: HostTransaction) -> None:
        self.open = False  #: its block has begun, and not ended
        self.over = False  #: its block has ended, and was not rolled back
        self._host = host
        self._completion: Any = None
        self._pid = os.getpid()

    @property
    def connection(self) -> Any:
        """The driver's connection: psycopg's `Connection` or `AsyncConnection`, or `sqlite3`'s."""
        if not self.open:
            raise UsageError("tx.connection is there inside the block of ctx.transaction() only")
        return self._host.connection

    @property
    def exclusive(self) -> bool:
        """Whether nothing else can be written to the store while the block is open."""
        return self.open and self._host.exclusive

    def complete(self, result: Any = None) -> None:
        """Complete the job with this result when the block ends, in the same commit.

        The result is checked now, as one that is returned would be; one that is not what the task
        declares is raised, and ends the attempt as its contract says. What the handler returns
        later counts no more.
        """
        if not self.open:
            raise UsageError("tx.complete() is called inside the block of ctx.transaction()")
        if self._completion is not None:
            raise UsageError("tx.complete() was called twice; a job is completed once")
        self._completion = self._host.check(result)

    def __enter__(self) -> Self:
        if in_event_loop():
            raise UsageError(
                "'with ctx.transaction()' would block the running event loop: use 'async with'"
            )
        self._begin()
        self._host.begin()
        self.open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_copy():
            return
        self.open = False
        if error is None and self._completion is not None:
            try:
                self._host.commit(self._completion)
            finally:
                self.over = self._host.committed
            return
        self._host.roll_back()
        if error is None:
            raise _incomplete()

    async def __aenter__(self) -> Self:
        self._begin()
        await self._host.abegin()
        self.open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_copy():
            return
        self.open = False
        if error is None and self._completion is not None:
            try:
                await self._host.acommit(self._completion)
            finally:
                self.over = self._host.committed
            return
        await self._host.aroll_back()
        if error is None:
            raise _incomplete()

    def _begin(self) -> None:
        if self.open or self.over or self._completion is not None:
            raise UsageError("a block of ctx.transaction() is entered once; ask for another one")

    def _is_copy(self) -> bool:
        """Whether a handler has forked inside its block: what is open belongs to the original."""
        return os.getpid() != self._pid


def _incomplete() -> UsageError:
    return UsageError(
        "the block of ctx.transaction() ended without tx.complete(result), so that it was rolled "
        "back: complete the job in it, or write rows on a connection of your own"
    )
