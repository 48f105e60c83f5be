# SPDX-License-Identifier: MIT
"""Keys kept in order, so that a claim looks at the first few jobs and never at all of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Final

__all__ = ["Key", "SortedKeys"]

#: What comes first, what breaks ties, and the id of the job.
Key = tuple[int, *tuple[int, ...], str]

#: Keys in one chunk before it is halved: small enough to shift, large enough to have few.
_CHUNK_KEYS_MAX: Final = 512


class SortedKeys:
    """A sorted set of keys; adding and removing costs little however many there are."""

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: list[list[Key]] = []  # none is empty; each is below the next

    def __iter__(self) -> Iterator[Key]:
        for chunk in self._chunks:
            yield from chunk

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    @property
    def ids(self) -> Iterator[str]:
        """The jobs, in order."""
        return (key[-1] for key in self)

    def add(self, key: Key) -> None:
        """Put in a key that is not there."""
        if not self._chunks:
            self._chunks.append([key])
            return
        at = min(self._chunk_of(key), len(self._chunks) - 1)
        chunk = self._chunks[at]
        insort(chunk, key)
        if len(chunk) > _CHUNK_KEYS_MAX:
            half = len(chunk) // 2
            self._chunks[at : at + 1] = [chunk[:half], chunk[half:]]

    def remove(self, key: Key) -> None:
        """Take out a key that is there."""
        at = self._chunk_of(key)
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, key)]
        if not chunk:
            del self._chunks[at]

    def first(self) -> Key | None:
        """The lowest key, if there is one."""
        return self._chunks[0][0] if self._chunks else None

    def up_to(self, bound: int, *, limit: int) -> list[str]:
        """The ids of the first `limit` keys whose first part is not above `bound`."""
        below = takewhile(lambda key: key[0] <= bound, self)
        return [key[-1] for key in islice(below, max(0, limit))]

    def _chunk_of(self, key: Key) -> int:
        """The first chunk that ends at or after the key."""
        return bisect_left(self._chunks, key, key=lambda chunk: chunk[-1])
