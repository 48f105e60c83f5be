# SPDX-License-Identifier: MIT
"""What may be kept with a job under names, and how much of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Final

import msgspec

from packhorse.errors import ConfigError, PayloadError

VALUE_BYTES_MAX: Final = 64 * 1024
ATTACHED_MAX: Final = 1_000  #: values and signals of one job
ATTACHED_BYTES_MAX: Final = 4 * 1024 * 1024  #: of all of them
ATTACHED_NAME_BYTES_MAX: Final = 256
SIGNALS_MAX: Final = 100  #: of one name
STEP_PREFIX: Final = "step:"  #: of the names of results of steps


class Attaching(msgspec.Struct, frozen=True, gc=False):
    """Values to keep with a job under its fence."""

    job_id: str
    fence: int
    values: dict[str, bytes]


class Attachments(msgspec.Struct, frozen=True):
    """All that is kept with a job."""

    values: dict[str, bytes] = {}
    signals: dict[str, tuple[bytes, ...]] = {}  #: by name, each in the order of coming
    waiting: bool = False  #: it waits until the next signal comes
    #: Items and failed of the end of a job of a group (`Settlement.counted`).
    counted: tuple[int, int] = (0, 0)
    deliveries: tuple[int, ...] = ()  #: numbers of signals that senders gave one, sorted

    @property
    def everything(self) -> list[bytes]:
        """Values and signals together."""
        return [*self.values.values(), *chain.from_iterable(self.signals.values())]

    def without(self, names: Collection[str]) -> Attachments:
        """What is left when values and signals of these names are forgotten."""
        values = {name: value for name, value in self.values.items() if name not in names}
        signals = {name: each for name, each in self.signals.items() if name not in names}
        return msgspec.structs.replace(self, values=values, signals=signals)

    @property
    def delivered(self) -> int:
        """How many signals came, whatever their names."""
        return sum(map(len, self.signals.values()))


def check_attaching(kept: Sequence[Attaching]) -> None:
    """Refuse what no job can have, and a job that is named twice."""
    if len({one.job_id for one in kept}) < len(kept):
        raise ConfigError("a job is named twice among those that values are attached to")
    for one in kept:
        check_values(one.values)


def check_values(values: Mapping[str, bytes]) -> None:
    """Refuse what no job can have, before anything is asked of a store."""
    for name, value in values.items():
        try:
            size = len(name) if name.isascii() else len(name.encode())
        except UnicodeEncodeError:
            size = 0
        if not 0 < size <= ATTACHED_NAME_BYTES_MAX or "\0" in name:
            raise ConfigError(
                f"{name[:80]!r} is no name to attach something under: it has 1 to "
                f"{ATTACHED_NAME_BYTES_MAX} bytes, and no U+0000"
            )
        if len(value) > VALUE_BYTES_MAX:
            step = name.removeprefix(STEP_PREFIX)
            what = repr(name) if step == name else f"the result of step {step!r}"
            raise PayloadError(
                f"{what} has {len(value)} bytes; at most {VALUE_BYTES_MAX} are kept with a job: "
                "keep the data elsewhere, and a reference to it here"
            )


def fits(number: int, size: int) -> bool:
    """Whether a job may have so many values and signals, of so many bytes."""
    return number <= ATTACHED_MAX and size <= ATTACHED_BYTES_MAX


def too_much(job_id: str) -> PayloadError:
    """What a writer is told whose values do not fit any more."""
    return PayloadError(
        f"job {job_id} would have more than {ATTACHED_MAX} values or {ATTACHED_BYTES_MAX} bytes "
        "attached; nothing was kept: attach less, or references to what is kept elsewhere"
    )
