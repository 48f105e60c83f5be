# SPDX-License-Identifier: MIT
"""What queues and tasks are set to: the half of `QueueStore` that reads only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from packhorse.stores.plan import Plan, Steps
from packhorse.stores.redis.gates import gate_of
from packhorse.stores.redis.statements import Script
from packhorse.stores.requests import QueueSettings, QueueState, TaskSettings

__all__ = ["QueueReading"]

_read_queue: Final = msgspec.json.Decoder(QueueSettings).decode
_read_task: Final = msgspec.json.Decoder(TaskSettings).decode


class QueueReading:
    """See `QueueStore`."""

    def queues(self) -> Plan[tuple[QueueState, ...]]:
        return Plan("queues", _queues, writes=False)

    def tasks(self) -> Plan[tuple[TaskSettings, ...]]:
        def steps() -> Steps[tuple[TaskSettings, ...]]:
            rows = yield Script("tasks")
            found = (_read_task(text) for text in rows[1::2])
            return tuple(sorted(found, key=lambda settings: settings.name))

        return Plan("tasks", steps, writes=False)

    def depth(self, queue: str) -> Plan[int]:
        def steps() -> Steps[int]:
            depth: int = yield Script("depth", (queue,))
            return depth

        return Plan("depth", steps, writes=False)


def _queues() -> Steps[tuple[QueueState, ...]]:
    flags, declarations, wishes, counts, paused_gates = yield Script("queues")
    declared, overrides = _settings(declarations), _settings(wishes)
    paused = {queue.decode() for queue, is_so, _ in flags if is_so == b"1"}
    closed = {queue.decode() for queue, _, is_so in flags if is_so == b"1"}
    holding = {field.decode().partition(":")[2] for field in counts}
    pauses = {gate_of(name.decode()).name for name in paused_gates}
    known = {*declared, *overrides, *paused, *closed, *holding, *(name[0] for name in pauses)}
    return tuple(
        QueueState(
            settings=overrides.get(queue) or declared.get(queue) or QueueSettings(queue),
            paused=queue in paused,
            declared=queue in declared,
            closed=queue in closed,
            overridden=queue in overrides,
            paused_keys=_names(pauses, queue, "key"),
            paused_tenants=_names(pauses, queue, "tenant"),
        )
        for queue in sorted(known)
    )


def _settings(rows: Sequence[bytes]) -> Mapping[str, QueueSettings]:
    """From name, text, name, text, ..."""
    return {
        name.decode(): _read_queue(text) for name, text in zip(rows[::2], rows[1::2], strict=True)
    }


def _names(pauses: Iterable[tuple[str, ...]], queue: str, what: str) -> tuple[str, ...]:
    return tuple(sorted(name for where, kind, name in pauses if (where, kind) == (queue, what)))
