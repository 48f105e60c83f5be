# SPDX-License-Identifier: MIT
"""How far a chunk of a batch is: which items are done, with what, and which failed.

It is kept with the chunk's job, in parts of bounded size, so that an attempt that was interrupted
is followed by one that runs the items which are left.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import msgspec

from packhorse.core.batches import ItemError

#: Longer results are not kept with a chunk.
ITEM_RESULT_BYTES_MAX: Final = 32 * 1024
_PREFIX: Final = "chunk:"
#: The bytes of a part with more than one item, and its items: so few parts hold the largest chunk.
_PART_BYTES: Final = 32 * 1024
_PART_ITEMS: Final = 250


class ItemState(IntEnum):
    """What became of an item so far."""

    DONE = 1
    AGAIN = 2  #: it failed, and is tried again
    FAILED = 3  #: for good


class KeptItem(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """An item as it is kept."""

    index: int  #: in its chunk
    state: ItemState
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: ItemError | None = None


class _Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """Some items, kept under one name."""

    items: list[KeptItem]
    over: bool = False  #: the chunk has ended: what failed is tried again only by a redrive


_PARTS: Final = msgspec.json.Decoder(_Part)


class ChunkState:
    """The items of one chunk."""

    def __init__(self, size: int, kept: Mapping[str, bytes]) -> None:
        self.size = size
        self.items: dict[int, KeptItem] = {}
        self._part_of: dict[int, int] = {}
        self._parts: list[dict[int, int]] = []  # of each part, its items with their sizes
        self._bytes: list[int] = []  # of each part
        self._changed: set[int] = set()
        for name, value in sorted(kept.items()):
            if name.startswith(_PREFIX):
                self._read(int(name.removeprefix(_PREFIX)), _PARTS.decode(value))
        self._changed.clear()

    def _read(self, number: int, part: _Part) -> None:
        """Put the items of a part into the same part again: the others are not written with it."""
        while len(self._parts) <= number:
            self._add_part()
        for item in part.items:
            again = part.over and item.state is ItemState.FAILED
            kept = msgspec.structs.replace(item, state=ItemState.AGAIN) if again else item
            self._put(kept, number, _size(kept))

    def note(self, item: KeptItem) -> None:
        """What became of an item."""
        number, size = self._part_of.get(item.index), _size(item)
        self._take_out(item.index)
        if number is None or not self._has_room(number, size):
            if not (self._parts and self._has_room(len(self._parts) - 1, size)):
                self._add_part()
            number = len(self._parts) - 1
        self._put(item, number, size)

    def _add_part(self) -> None:
        self._parts.append({})
        self._bytes.append(0)

    def _has_room(self, number: int, size: int) -> bool:
        items = len(self._parts[number])
        return not items or (items < _PART_ITEMS and self._bytes[number] + size <= _PART_BYTES)

    def _take_out(self, index: int) -> None:
        number = self._part_of.pop(index, None)
        if number is not None:
            self._bytes[number] -= self._parts[number].pop(index)
            self._changed.add(number)

    def _put(self, item: KeptItem, number: int, size: int) -> None:
        self._take_out(item.index)
        self.items[item.index] = item
        self._part_of[item.index] = number
        self._parts[number][item.index] = size
        self._bytes[number] += size
        self._changed.add(number)

    @property
    def left(self) -> list[int]:
        """The items that are to be run, in order."""
        return [index for index in range(self.size) if self._is_left(index)]

    def _is_left(self, index: int) -> bool:
        item = self.items.get(index)
        return item is None or item.state is ItemState.AGAIN

    @property
    def failed(self) -> list[KeptItem]:
        """Those that failed for good, in order."""
        found = [item for item in self.items.values() if item.state is ItemState.FAILED]
        return sorted(found, key=lambda item: item.index)

    @property
    def counted(self) -> tuple[int, int]:
        """Items that are through, and those of them that failed."""
        failed = len(self.failed)
        done = sum(item.state is ItemState.DONE for item in self.items.values())
        return done + failed, failed

    def keep_again(self) -> None:
        """What was taken was not written after all: all of it is to be."""
        self._changed.update(range(len(self._parts)))

    def taken(self) -> dict[str, bytes]:
        """What is to be written, by names; as if it were written from now on."""
        changed, self._changed = sorted(self._changed), set()
        return {f"{_PREFIX}{number:03}": self._written(number) for number in changed}

    def ended(self) -> dict[str, bytes]:
        """All of it, of a chunk that has ended and has failed items."""
        self._changed.clear()
        numbers = range(len(self._parts))
        return {f"{_PREFIX}{number:03}": self._written(number, over=True) for number in numbers}

    def _written(self, number: int, *, over: bool = False) -> bytes:
        return msgspec.json.encode(_Part([self.items[at] for at in self._parts[number]], over))

    @property
    def results(self) -> str:
        """The results of all items, of a chunk that is done, as JSON."""
        return msgspec.json.encode([self.items[at].result for at in range(self.size)]).decode()


def _size(item: KeptItem) -> int:
    return len(msgspec.json.encode(item)) + 1
