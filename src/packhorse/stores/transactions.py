# SPDX-License-Identifier: MIT
"""What a store promises whose jobs can be completed together with rows of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from packhorse.stores.plan import Steps


class OpenTransaction(Protocol):
    """A transaction on a connection of its own, which the user writes rows with.

    `finish` or `roll_back` ends it, `afinish` or `aroll_back` one that `abegin` began.
    """

    @property
    def connection(self) -> Any:
        """The driver's connection; it can neither commit nor roll back by itself."""
        ...

    def finish(self, steps: Callable[[], Steps[bool]]) -> bool:
        """Take steps of the store as the last in it, and commit, if they say so; else roll back.

        Steps that could not be taken together with others are begun again. What is raised has
        rolled it back, save `StoreUnavailable` with `maybe_stored`: then it may be committed.
        """
        ...

    async def afinish(self, steps: Callable[[], Steps[bool]]) -> bool:
        """As `finish`; goes on to its end if the caller is cancelled."""
        ...

    def roll_back(self) -> None:
        """Undo all of it; never raises."""
        ...

    async def aroll_back(self) -> None:
        """As `roll_back`."""
        ...


class TransactionStore(Protocol):
    """Opens transactions that end with steps of the store, on connections of their own."""

    @property
    def exclusive(self) -> bool:
        """Whether nothing else can be written to the store meanwhile."""
        ...

    def begin(self, lease_s: float) -> OpenTransaction:
        """Begin one in the caller's thread.

        It is bounded such that it endangers neither leases of `lease_s` nor jobs of others.
        """
        ...

    async def abegin(self, lease_s: float) -> OpenTransaction:
        """As `begin`, for the running event loop."""
        ...
