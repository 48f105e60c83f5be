# SPDX-License-Identifier: MIT
"""What code declares and records hold: whose declaration holds, and how long without one.

Workers of a release declare schedules and subscribers when they start, and again from time to
time. Several releases may do so at once, as in a rolling deploy.
"""

from __future__ import annotations

from typing import Final, Protocol, TypeVar

import msgspec

from packhorse.core.clock import SECOND_US
from packhorse.core.policies.records import Put, Record, RecordId

#: What no live worker has declared for so long is retired.
RETIRED_AFTER_US: Final = 3_600 * SECOND_US
#: And is shown for so long.
RETIRED_KEPT_US: Final = 30 * 24 * 3_600 * SECOND_US
#: How often workers write that they still declare it.
SEEN_EVERY_US: Final = 600 * SECOND_US


class Release(msgspec.Struct, frozen=True):
    """Who declares: a release of an app, and since when the store knows it."""

    name: str = ""
    since_us: int = 0


class Declared(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What every document has that code declares."""

    seen_us: int  #: when a live worker last said that it declares it
    release: Release = Release()  #: whose declaration holds
    retired_us: int | None = None


class Declaration(Protocol):
    """Something that a worker declares."""

    @property
    def id(self) -> RecordId:
        """The record that holds it."""
        ...

    def put(
        self, record: Record | None, release: Release, now_us: int, *, holder_lives: bool
    ) -> Put | None:
        """How to write what this declaration makes of it; None: nothing has to be written."""
        ...


D = TypeVar("D", bound=Declared)


def declared_again(
    before: D, new: D, release: Release, now_us: int, *, holder_lives: bool
) -> D | None:
    """What becomes of a document when it is declared, `new` being the same with what code says now.

    None: nothing that had to be written. The newest release holds, until no worker of it lives
    (`holder_lives`). Each declaration keeps it from being retired.
    """
    holds = release.since_us >= before.release.since_us or not holder_lives
    takes_over = holds and before.release != release
    changes = holds and new != before
    fresh = now_us - before.seen_us < SEEN_EVERY_US and before.retired_us is None
    if fresh and not takes_over and not changes:
        return None
    return msgspec.structs.replace(
        new if changes else before,
        seen_us=now_us,
        retired_us=None,
        release=release if holds else before.release,
    )
