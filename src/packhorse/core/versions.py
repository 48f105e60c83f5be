# SPDX-License-Identifier: MIT
"""Versions of payloads: which one a stored payload is of, and how it becomes one of now.

A job carries the version of the contract it was submitted under. Upcasters move an older payload
forward, one version at a time. What is of another version and does not fit is set aside, as a job
is whose task no worker knows; of the same version it is an invalid request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

import msgspec

from packhorse.core.job import DeadReason, JobRecord, options_of, waits_for
from packhorse.core.outcome import GivenUp, Snoozed, attempt_error
from packhorse.errors import ConfigError, PayloadError

#: The error code of a job whose payload is of another version, and does not fit.
OTHER_VERSION: Final = "OTHER_VERSION"
#: A job that is set aside comes back after as long as it has been so, within these bounds.
_ASIDE_US_MIN: Final = 1_000_000
_ASIDE_US_MAX: Final = 60_000_000

_NUMBERS: Final = re.compile(r"[0-9]+(\.[0-9]+)*")

Upcaster = Callable[[dict[str, Any]], Any]


class OtherVersion(Exception):
    """A payload of another version does not fit; the cause says why, where there is one."""


class PayloadVersions:
    """The versions of one task's payloads: that of now, and older ones that lead to it."""

    def __init__(self, label: str, declared: str | None) -> None:
        self._label = label
        self._declared = None if declared is None else _canonical(declared)
        self._ways: dict[str, tuple[str, Upcaster]] = {}

    def add(self, source: str, target: str, function: Upcaster) -> None:
        """Take in an upcaster; one that leads nowhere, or twice somewhere, is a mistake."""
        start, end = self._named(source), self._named(target)
        if start in self._ways:
            self._refuse(f"there are two upcasters from version {source!r}; keep one of them")
        if start == end or start in self._versions_from(end):
            self._refuse(f"the upcaster from {source!r} to {target!r} leads back to {source!r}")
        if start == self._declared:
            self._refuse(
                f"there is an upcaster from {source!r}, which is the version of its contract; give "
                "the contract the version that it leads to"
            )
        ends = self._ends({**self._ways, start: (end, function)})
        if len(ends) > 1:
            self._refuse(
                f"the upcaster from {source!r} to {target!r} is not joined to the others, which "
                f"end at {' and '.join(ends)}; declare them in order, and one for each version"
            )
        self._ways[start] = (end, function)

    @property
    def current(self) -> str | None:
        """The version of payloads that are made now; None: there are none."""
        ends = self._ends(self._ways)
        if ends and self._declared not in (None, *ends):
            self._refuse(
                f"its contract is of version {self._declared!r}, and its upcasters end at "
                f"{ends[0]!r}; declare one from there, or give the contract that version"
            )
        return self._declared if self._declared is not None else next(iter(ends), None)

    def leads_from(self, version: str | None) -> bool:
        """Whether there is a way from an older version."""
        return version is not None and _canonical(version) in self._ways

    def is_current(self, version: str | None) -> bool:
        """Whether a payload of this version is one of now; None: it was stored without one."""
        if version is None:
            return not self._ways
        return _canonical(version) == self.current

    def upcast(self, version: str | None, payload: str | bytes) -> str | bytes:
        """A payload as one of now, if there is a way; what is too new raises `OtherVersion`.

        Stored without a version, it counts as the oldest. What is older, and has no way, is left as
        it is: it may fit.
        """
        if self.is_current(version):
            return payload
        steps = list(self._steps(version))
        if not steps:
            if version is not None and _is_newer(version, self.current or ""):
                raise OtherVersion
            return payload
        value = msgspec.json.decode(payload)
        for source, target, function in steps:
            value = function(value)
            if not isinstance(value, dict):
                raise PayloadError(
                    f"{self._label}: its upcaster from {source!r} to {target!r} returned a "
                    f"{type(value).__name__}; it must return the payload"
                )
        return msgspec.json.encode(value)

    def _steps(self, version: str | None) -> Iterator[tuple[str, str, Upcaster]]:
        at: str | None = self._oldest() if version is None else _canonical(version)
        while at in self._ways:
            target, function = self._ways[at]
            yield at, target, function
            at = target

    def _oldest(self) -> str | None:
        """The version that most steps lead on from; the first one declared, of several."""
        return max(self._ways, key=lambda each: len(self._versions_from(each)), default=None)

    def _versions_from(self, version: str) -> list[str]:
        found = [version]
        while found[-1] in self._ways:
            found.append(self._ways[found[-1]][0])
        return found

    def _ends(self, ways: dict[str, tuple[str, Upcaster]]) -> list[str]:
        return list(dict.fromkeys(end for end, _ in ways.values() if end not in ways))

    def _named(self, version: object) -> str:
        if not isinstance(version, str) or not version.strip():
            self._refuse(f"a version is {version!r}; give a text, as the contract has it")
        return _canonical(version)

    def _refuse(self, problem: str) -> NoReturn:
        raise ConfigError(f"task {self._label}: {problem}")


def stored_version(options: str | None) -> str | None:
    """The version a job was submitted under, from its options as a store hands them over."""
    return options_of(options).version


def set_aside(
    record: JobRecord | None, problem: str, now_us: int, *, longest_us: int
) -> Snoozed | GivenUp:
    """What becomes of a job whose payload is of another version and does not fit.

    It comes back in a while, for a worker that knows the version; after `longest_us` it is dead as
    if its task were unknown. `record` is what is stored of it, if that could be read.
    """
    last = None if record is None else waits_for(record)
    since_us = now_us
    if last is not None and last.code == OTHER_VERSION and last.since_us is not None:
        since_us = last.since_us
    spent_us = max(0, now_us - since_us)
    error = attempt_error("OtherVersion", problem, OTHER_VERSION, reason="other_version")
    if spent_us >= longest_us:
        return GivenUp(DeadReason.UNKNOWN_TASK, error)
    delay_us = min(max(spent_us, _ASIDE_US_MIN), _ASIDE_US_MAX)
    error = msgspec.structs.replace(error, since_us=since_us)
    return Snoozed(delay_us, counts=False, begun=False, error=error)


def _canonical(version: str) -> str:
    """`1.0` is `1`."""
    version = version.strip()
    if _NUMBERS.fullmatch(version) is None:
        return version
    numbers = [int(part) for part in version.split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return ".".join(map(str, numbers))


def _is_newer(version: str, than: str) -> bool:
    """Whether it comes after; only numbers say so."""
    if not (_NUMBERS.fullmatch(version) and _NUMBERS.fullmatch(than)):
        return False
    one, other = ([int(part) for part in each.split(".")] for each in (version, than))
    return one > other
