# SPDX-License-Identifier: MIT
"""What a store was given to keep beside jobs: records, and what is attached to a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from faults.checking.evidence import Verdict
from packhorse.core.policies.attachments import Attachments


class Kept(msgspec.Struct, frozen=True):
    """What was asked for, what was answered, and what is there at last."""

    added: frozenset[str] = frozenset()  #: additions to a counter that were asked for, by name
    answered: frozenset[str] = frozenset()  #: those of them that were answered
    counted: int = 0  #: what the counter came to
    attached: Sequence[tuple[str, str]] = ()  #: (job id, name) of values that were answered
    delivered: Sequence[tuple[str, str]] = ()  #: (job id, value) of signals that were answered
    there: Mapping[str, Attachments] = {}  #: by job id


def judge(kept: Kept) -> Verdict:
    """Hold what was kept against every rule."""
    found = {name: list(rule(kept)) for name, rule in RULES.items()}
    cases = (len(kept.answered), len(kept.attached), len(kept.delivered))
    return Verdict(found, dict(zip(RULES, cases, strict=True)))


def miscounted(kept: Kept) -> Iterator[str]:
    """An addition that was answered is counted, and none is counted twice."""
    least, most = len(kept.answered), len(kept.added)
    if not least <= kept.counted <= most:
        yield f"{kept.counted} were counted; {least} were answered, of {most} that were asked for"


def lost_values(kept: Kept) -> Iterator[str]:
    """A value that was answered stays with its job."""
    for job_id, name in kept.attached:
        if name not in kept.there.get(job_id, Attachments()).values:
            yield f"{name!r} of {job_id} is gone"


def lost_signals(kept: Kept) -> Iterator[str]:
    """A signal that was answered is there once."""
    for job_id, value in kept.delivered:
        signals = kept.there.get(job_id, Attachments()).signals.values()
        number = sum(one.count(value.encode()) for one in signals)
        if number != 1:
            yield f"signal {value} of {job_id} is there {number} times"


RULES: Final[Mapping[str, Callable[[Kept], Iterator[str]]]] = MappingProxyType(
    {
        "record miscounted": miscounted,
        "attached value lost": lost_values,
        "signal lost or twice": lost_signals,
    }
)
