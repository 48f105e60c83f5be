# SPDX-License-Identifier: MIT
"""Steps of a job: what is kept of each, and what an attempt may do with those kept before.

A step's result is kept with the job before the handler goes on, so that a later attempt is given it
instead of doing the step again. `StepLog` has the rules and no way to a store; `packhorse.steps`
reads and writes for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from packhorse.core.job import Job, JobOptions
from packhorse.core.policies.attachments import STEP_PREFIX
from packhorse.core.policies.explain import OpenStep
from packhorse.core.sealing import is_sealed
from packhorse.errors import StepMismatch, UsageError

STEP_NAME_LENGTH_MAX: Final = 100
#: Attachments of steps begin with it; others belong to other capabilities.
#: By so much may the worker's idea of the time differ from the store's.
_SKEW_US: Final = 1_000_000


class StepKind(StrEnum):
    """What a step does."""

    STEP = "step"
    EACH = "each"  #: a loop; its value is the place behind the last item confirmed
    SLEEP = "sleep"
    WAIT = "wait"  #: for a signal


class StepState(StrEnum):
    """How far a step is."""

    DONE = "done"
    OPEN = "open"  #: it sleeps, waits, or has items left
    TIMED_OUT = "timed_out"  #: the signal it waited for did not come in time


class KeptStep(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A step as it is kept with its job."""

    kind: StepKind
    number: int  #: of its beginning in its attempt, from 1
    state: StepState = StepState.DONE
    value: msgspec.Raw = msgspec.Raw(b"null")  #: as JSON
    duration_us: int = 0
    due_us: int | None = None  #: when a sleep or a wait ends at the latest
    timeless: bool = False  #: only a signal ends it: `due_us` is far away

    def encoded(self) -> bytes:
        """As it is kept."""
        return msgspec.json.encode(self)


_STEPS: Final = msgspec.json.Decoder(KeptStep)


class StepInfo(msgspec.Struct, frozen=True):
    """A step, as people see it."""

    name: str
    kind: StepKind
    state: StepState
    duration: float  #: seconds
    size: int  #: bytes kept


def has_attachments(job: Job) -> bool:
    """Whether something was kept with a job before it was claimed."""
    if job.options is None or '"attached"' not in job.options:
        return False
    try:
        return msgspec.json.decode(job.options, type=JobOptions).attached
    except msgspec.DecodeError:  # written by a release that knew other options
        return True


def steps_of(values: Mapping[str, bytes]) -> tuple[StepInfo, ...]:
    """The steps among what is kept with a job, in the order of their beginnings."""
    kept = _read(values)
    return tuple(
        StepInfo(name, one.kind, one.state, one.duration_us / 1_000_000, len(bytes(one.value)))
        for name, one in sorted(kept.items(), key=lambda item: (item[1].number, item[0]))
    )


def open_step(values: Mapping[str, bytes], due_us: int) -> OpenStep | None:
    """The step in which a job waits that is due then, if it waits in one."""
    found = [
        (step.number, name, step)
        for name, step in _read(values).items()
        # One that ended since, and has not been written again, was due before.
        if step.state is StepState.OPEN and (step.due_us or 0) >= due_us - _SKEW_US
    ]
    if not found:
        return None
    _, name, step = max(found)
    if step.kind is StepKind.SLEEP:
        return OpenStep(name, due_us)
    return OpenStep(name, None if step.timeless else due_us, signal=name.rpartition("#")[0])


class StepLog:
    """The steps of one attempt, beside those that were kept before it."""

    __slots__ = ("_before", "_begun", "_kept", "_taken", "_waits", "_warn", "unwritten")

    def __init__(self, values: Mapping[str, bytes], warn: Callable[[str], None]) -> None:
        self._before = _read(values) if values else {}  # steps of earlier attempts
        self._kept = dict(self._before)
        self._begun: set[str] = set()
        self._waits: dict[str, int] = {}  # for each signal
        self._taken: dict[str, int] = {}  # signals that waits of this attempt were given
        self.unwritten: dict[str, bytes] = {}  #: steps that share the next write
        self._warn: Callable[[str], None] | None = warn  # None: it was called

    def begin(
        self, name: str, kind: StepKind, *, strict: bool = False
    ) -> tuple[int, KeptStep | None]:
        """A step begins: return its number, and what is kept of it.

        A name names one step of an attempt. Where earlier attempts had other steps, or this one at
        another place, that is a warning once, and with `strict` a `StepMismatch`.
        """
        _check_name(name)
        if name in self._begun:
            raise UsageError(
                f"step {name!r} was used twice in one attempt: its result would be taken for that "
                "of the other; give every step a name of its own, such as f'charge-{order}'"
            )
        self._begun.add(name)
        number, kept = len(self._begun), self._kept.get(name)
        if kept is not None and kept.kind is not kind:
            raise StepMismatch(
                f"step {name!r} was a {kept.kind} in an earlier attempt and is a {kind} now; give "
                "the new one another name"
            )
        if self._before and (problem := self._difference(name, number, kept)) is not None:
            if strict:
                raise StepMismatch(problem)
            warn, self._warn = self._warn, None
            if warn is not None:
                warn(problem)
        return number, kept

    def keep(self, name: str, step: KeptStep) -> None:
        """Have a step written next."""
        self._kept[name] = step
        self.unwritten[STEP_PREFIX + name] = step.encoded()

    def next_wait(self, signal: str) -> str:
        """The name of the next wait for this signal: each takes one of those that came."""
        self._waits[signal] = number = self._waits.get(signal, 0) + 1
        return f"{signal}#{number}"

    def next_signal(self, signal: str) -> int:
        """Which of the signals of this name the next wait takes."""
        return self._taken.get(signal, 0)

    def took_signal(self, signal: str) -> None:
        """A wait of this attempt was given one."""
        self._taken[signal] = self.next_signal(signal) + 1

    def _difference(self, name: str, number: int, kept: KeptStep | None) -> str | None:
        missing = sorted(
            other
            for other, step in self._before.items()
            if step.number < number and other not in self._begun
        )
        if missing:
            return (
                f"step {name!r} begins, and {missing[0]!r}, which came before it in an earlier "
                "attempt, did not: the order of steps has changed"
            )
        if kept is not None and kept.number != number:
            return (
                f"step {name!r} was number {kept.number} in an earlier attempt and is number "
                f"{number} now: the order of steps has changed"
            )
        return None


def _read(values: Mapping[str, bytes]) -> dict[str, KeptStep]:
    """Those that can be read: an attempt that has others does not begin (`steps.runner`)."""
    return {
        name.removeprefix(STEP_PREFIX): _STEPS.decode(value)
        for name, value in values.items()
        if name.startswith(STEP_PREFIX) and not is_sealed(value)
    }


def _check_name(name: object) -> None:
    if isinstance(name, str) and 0 < len(name) <= STEP_NAME_LENGTH_MAX and name.isprintable():
        return
    raise UsageError(
        f"{name!r} is no name of a step: give 1 to {STEP_NAME_LENGTH_MAX} printable characters"
    )
