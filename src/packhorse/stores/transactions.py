# SPDX-License-Identifier: MIT
"""The contract of stores that can complete a job in one transaction with a user's rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from packhorse.stores.plan import Steps


class OpenTransaction(Protocol):
    """A transaction on its own connection, which the user writes rows with.

    `finish` or `roll_back` ends it, `afinish` or `aroll_back` one that `abegin` began.
    """

    @property
    def connection(self) -> Any:
        """The driver's connection; it can neither commit nor roll back by itself."""

    def finish(self, steps: Callable[[], Steps[bool]]) -> bool:
        """Run steps of the store last, then commit if they return True; else roll back.

        Steps that need more locks are begun again. An error has rolled the transaction back, except
        `StoreUnavailable` with `maybe_stored`: then it may be committed.
        """

    async def afinish(self, steps: Callable[[], Steps[bool]]) -> bool:
        """Do as `finish`; it goes on to its end if the caller is cancelled."""

    def roll_back(self) -> None:
        """Roll back; never raises."""

    async def aroll_back(self) -> None:
        """Do as `roll_back`."""


class TransactionStore(Protocol):
    """Opens transactions that end with steps of the store, each on its own connection."""

    @property
    def exclusive(self) -> bool:
        """Whether an open transaction keeps others from writing to the store."""

    def begin(self, lease_s: float) -> OpenTransaction:
        """Begin one in the caller's thread.

        Its time is bounded, so that leases of `lease_s` and jobs of others are not lost.
        """

    async def abegin(self, lease_s: float) -> OpenTransaction:
        """Do as `begin`, for the running event loop."""
