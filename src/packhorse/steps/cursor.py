# SPDX-License-Identifier: MIT
"""The place of a loop over items, which an attempt hands to the next."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sized
from typing import Any, Generic, TypeVar

import msgspec

from packhorse.core.steps import KeptStep, StepKind, StepState
from packhorse.errors import UsageError

T = TypeVar("T")


class Cursor(Generic[T]):
    """The place of a loop over items."""

    def __init__(
        self,
        name: str,
        key: Callable[[T], Any] | None,
        every: int,
        total: int | None,
        now_us: Callable[[], int],
    ) -> None:
        if every < 1:
            raise UsageError(f"ctx.each(): every is {every}; give 1 or more")
        self.name = name
        self.every = every
        self.total = total
        self.done = False
        self.confirmed = 0
        self._key = key
        self._last: Any = None
        self._left = 0  # items to skip
        self._seeking = False
        self._number = 0
        self._now_us = now_us
        self._began_us = now_us()

    def open(self, number: int, kept: KeptStep | None) -> None:
        """Go on where an earlier attempt was."""
        self._number = number
        if kept is None:
            return
        self.done = kept.state is StepState.DONE
        self.confirmed, self._last = msgspec.json.decode(bytes(kept.value))
        self._left = self.confirmed if self._key is None else 0
        self._seeking = self._key is not None and self.confirmed > 0

    def skips(self, item: T) -> bool:
        """Return whether an earlier attempt has confirmed this item."""
        if self._seeking and self._key is not None:
            self._seeking = _plain(self._key(item)) != self._last
            return True
        if self._left:
            self._left -= 1
            return True
        return False

    def confirm(self, item: T) -> KeptStep:
        """Note that the loop is done with an item."""
        self.confirmed += 1
        if self._key is not None:
            self._last = _plain(self._key(item))
        return self.kept(StepState.OPEN)

    def kept(self, state: StepState) -> KeptStep:
        """The place as it is kept."""
        spent_us = self._now_us() - self._began_us
        value = msgspec.Raw(msgspec.json.encode((self.confirmed, self._last)))
        return KeptStep(StepKind.EACH, self._number, state, value, spent_us)

    def require_found(self) -> None:
        """Raise if the item that was confirmed last did not come again."""
        if self._seeking:
            raise UsageError(
                f"ctx.each(name={self.name!r}): the item confirmed last, key {self._last!r}, is "
                "not among the items any more, so that the place to go on is unknown; give items "
                "in a stable order, with those that are done among them"
            )


def _plain(value: Any) -> Any:
    """Return a key as it reads after a round trip through JSON."""
    return msgspec.json.decode(msgspec.json.encode(value))


def size_of(items: object) -> int | None:
    """Return the number of items; None if they have no length."""
    return len(items) if isinstance(items, Sized) else None


async def asynchronous(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    """Yield the items of either kind."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
        return
    for item in items:
        yield item
