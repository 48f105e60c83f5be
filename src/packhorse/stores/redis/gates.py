# SPDX-License-Identifier: MIT
"""The names of gates in Redis: a letter for the kind, then what the gate is about.

Parts that something follows have their length before them, since they may hold any character.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from packhorse.policies.gates import Gate, GateKind

__all__ = ["gate_of", "key_pause_name", "measured", "tenant_pause_name"]


def measured(text: str) -> str:
    """A text with its length in bytes before it."""
    return f"{len(text.encode())}:{text}"


def tenant_pause_name(queue: str, tenant: str) -> str:
    """The name of `policies.gates.tenant_pause`."""
    return f"Pt{measured(queue)}{tenant}"


def key_pause_name(queue: str, key: str) -> str:
    """The name of `policies.gates.key_pause`."""
    return f"Pk{measured(queue)}{key}"


def gate_of(name: str) -> Gate:
    """The gate that a name stands for."""
    return _READERS[name[0]](name[1:])


def _split(text: str) -> tuple[str, str]:
    """The first part, which has its length before it, and the rest."""
    length, _, rest = text.partition(":")
    data = rest.encode()
    return data[: int(length)].decode(), data[int(length) :].decode()


def _pause(text: str) -> Gate:
    queue, name = _split(text[1:])
    return Gate(GateKind.PAUSE, (queue, "tenant" if text[0] == "t" else "key", name))


def _order(text: str) -> Gate:
    queue, rest = _split(text)
    return Gate(GateKind.ORDER, (queue, *_split(rest)))


def _alone(kind: GateKind) -> Callable[[str], Gate]:
    return lambda text: Gate(kind, (text,))


def _two(kind: GateKind) -> Callable[[str], Gate]:
    return lambda text: Gate(kind, _split(text))


_READERS: Final[Mapping[str, Callable[[str], Gate]]] = MappingProxyType(
    {
        "P": _pause,
        "O": _order,
        "C": _alone(GateKind.TASK_CONCURRENCY),
        "K": _two(GateKind.TASK_CONCURRENCY),
        "Q": _alone(GateKind.QUEUE_CONCURRENCY),
        "R": _alone(GateKind.TASK_RATE),
        "S": _two(GateKind.TASK_RATE),
        "T": _two(GateKind.TENANT_RATE),
        "U": _alone(GateKind.QUEUE_RATE),
    }
)
