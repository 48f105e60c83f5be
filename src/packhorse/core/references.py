# SPDX-License-Identifier: MIT
"""Arguments that are results of other nodes: named when a call is made, read when it starts.

A call keeps null in their places, and beside it where each place is and whose result belongs
there. So nothing that a user passes can be taken for a reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from packhorse.core.job import Input, Job, JobOptions, Member
from packhorse.core.policies.journal import Group
from packhorse.core.workflows import node_job_id, numbers_in, numbers_text, owner_of
from packhorse.errors import PayloadError

#: Bytes of arguments with the results in them.
FILLED_BYTES_MAX: Final = 256 * 1024 * 1024


class Reference:
    """Stands for the result of a node; no codec knows it, so that none carries it by chance."""

    __slots__ = ("flow", "number")

    def __init__(self, flow: object, number: int) -> None:
        self.flow = flow  #: the graph of the node
        self.number = number

    def __repr__(self) -> str:
        return f"<the result of node {self.number}>"


class ArgumentPlace(NamedTuple):
    """Where a reference stands in the arguments of a call."""

    path: tuple[str | int, ...]
    references: tuple[Reference, ...]
    many: bool = False  #: a list of their results


class Wanted(NamedTuple):
    """Results that a job needs before it starts, in the order of `nodes`, their keys."""

    inputs: tuple[Input, ...]
    member: Member
    nodes: tuple[str, ...]

    @property
    def job_ids(self) -> tuple[str, ...]:
        """The jobs of these nodes."""
        group = Group.of(self.member.group)
        return tuple(node_job_id(group, node) for node in self.nodes)


def has_references(value: Any) -> bool:
    """Whether a reference stands somewhere in plain data, which may be deep, or contain itself."""
    seen, unread = set[int](), [value]
    while unread:
        part = unread.pop()
        if isinstance(part, Reference):
            return True
        if isinstance(part, Mapping | list | tuple) and id(part) not in seen:
            seen.add(id(part))
            unread += part.values() if isinstance(part, Mapping) else part
    return False


def take_places(value: Any, path: tuple[str | int, ...], found: list[ArgumentPlace]) -> Any:
    """The value with null for each reference; their places are added to `found`."""
    if isinstance(value, Reference):
        found.append(ArgumentPlace(path, (value,)))
        return None
    if isinstance(value, Mapping):
        return {key: take_places(part, (*path, str(key)), found) for key, part in value.items()}
    if not isinstance(value, list | tuple):
        return value
    numbers = [part.number for part in value if isinstance(part, Reference)]
    if numbers and len(numbers) == len(value) and numbers == sorted(set(numbers)):
        found.append(ArgumentPlace(path, tuple(value), many=True))
        return None
    return [take_places(part, (*path, at), found) for at, part in enumerate(value)]


def inputs_of(places: Sequence[ArgumentPlace]) -> tuple[Input, ...]:
    """The places as a job keeps them."""
    return tuple(
        Input(place.path, numbers_text(each.number for each in place.references), place.many)
        for place in places
    )


def wanted_results(job: Job) -> Wanted | None:
    """Which results a claimed job needs; None: none."""
    if job.options is None or '"inputs"' not in job.options:
        return None
    options = msgspec.json.decode(job.options, type=JobOptions)
    member = options.member
    if not options.inputs or member is None:
        return None
    owner = owner_of(member.node)
    beside = f"{owner}." if owner else ""
    numbers = {number for each in options.inputs for number in numbers_in(each.nodes)}
    return Wanted(options.inputs, member, tuple(f"{beside}{each}" for each in sorted(numbers)))


def filled(payload: str, wanted: Wanted, results: Sequence[bytes | None]) -> str:
    """The payload with these results, of `Wanted.nodes`, in their places; None is null."""
    numbers = sorted({number for each in wanted.inputs for number in numbers_in(each.nodes)})
    by_number = {
        number: msgspec.Raw(b"null" if result is None else result)
        for number, result in zip(numbers, results, strict=True)
    }
    size = len(payload) + sum(len(result or b"") for result in results)
    if size > FILLED_BYTES_MAX:
        raise PayloadError(
            f"the arguments with the results of other nodes have {size} bytes, and "
            f"{FILLED_BYTES_MAX} are taken: return references instead of the data"
        )
    value: Any = msgspec.json.decode(payload)
    for each in wanted.inputs:
        found = [by_number[number] for number in numbers_in(each.nodes)]
        value = _set(value, each.path, found if each.many else found[0])
    return msgspec.json.encode(value).decode()


def _set(value: Any, path: tuple[str | int, ...], part: Any) -> Any:
    if not path:
        return part
    value[path[0]] = _set(value[path[0]], path[1:], part)
    return value
