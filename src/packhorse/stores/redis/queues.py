# SPDX-License-Identifier: MIT
"""Queues on Redis: what they and tasks are set to, what is paused or closed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec

from packhorse.errors import ConfigError
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.redis.gates import key_pause_name, tenant_pause_name
from packhorse.stores.redis.queue_reading import QueueReading
from packhorse.stores.redis.statements import Script
from packhorse.stores.requests import QueueSettings, TaskSettings

__all__ = ["RedisQueues"]

#: Scripts of one change of settings: each opens a bounded number of groups of lines.
_REOPENINGS_MAX: Final = 10_000
_text: Final = msgspec.json.Encoder(order="deterministic").encode
_read_queue: Final = msgspec.json.Decoder(QueueSettings).decode
_read_task: Final = msgspec.json.Decoder(TaskSettings).decode


class RedisQueues(QueueReading):
    """See `QueueStore`."""

    def declare(self, queues: Sequence[QueueSettings]) -> Plan[tuple[QueueSettings | None, ...]]:
        return Plan("declare", partial(_declare, tuple(queues)))

    def declare_tasks(self, tasks: Sequence[TaskSettings]) -> Plan[tuple[TaskSettings | None, ...]]:
        return Plan("declare_tasks", partial(_declare_tasks, tuple(tasks)))

    def override(self, queue: str, settings: QueueSettings | None) -> Plan[bool]:
        return Plan("override", partial(_override, queue, settings))

    def pause(
        self, queue: str, *, paused: bool, key: str | None = None, tenant: str | None = None
    ) -> Plan[bool]:
        if key is not None and tenant is not None:
            raise ConfigError(
                f"key {key!r} and tenant {tenant!r} of queue {queue!r} cannot be paused or resumed "
                "together; nothing was changed: call once for each"
            )
        gate = "" if key is None else key_pause_name(queue, key)
        if tenant is not None:
            gate = tenant_pause_name(queue, tenant)
        return Plan("pause", partial(_said, "pause", [queue, int(paused), gate]))

    def close_queue(self, queue: str, *, closed: bool) -> Plan[bool]:
        return Plan("close_queue", partial(_said, "close_queue", [queue, int(closed)]))


def _said(script: str, args: list[str | int]) -> Steps[bool]:
    reply = yield Script(script, args)
    return bool(reply)


def _declare(queues: Sequence[QueueSettings]) -> Steps[tuple[QueueSettings | None, ...]]:
    args: list[str | bytes | int] = []
    for settings in queues:
        yield from _index_waiting(settings)
        args += (settings.name, _text(settings), _text(QueueSettings(settings.name)))
    reply = yield Script("declare", args)
    _refuse_clash(reply, "no declaration was kept")
    yield from _reopen()
    return tuple(_read_queue(text) if text else None for text in reply[1:])


def _override(queue: str, settings: QueueSettings | None) -> Steps[bool]:
    if settings is not None:
        yield from _index_waiting(settings)
    text = b"" if settings is None else _text(settings)
    reply = yield Script("override", [queue, text, _text(QueueSettings(queue))])
    _refuse_clash(reply, "no declaration was kept")
    yield from _reopen()
    return bool(reply[1])


def _index_waiting(settings: QueueSettings) -> Steps[None]:
    """A queue that drops must know its least urgent job; others do not pay for that."""
    if settings.on_full != "drop":
        return
    after: Any = b"0"
    while after:
        after = yield Script("index_waiting", [settings.name, after])


def _reopen() -> Steps[None]:
    """Let claims look again at what the old settings held back, in parts."""
    for _ in range(_REOPENINGS_MAX):
        more = yield Script("reopen")
        if not more:
            return


def _refuse_clash(reply: Sequence[Any], consequence: str) -> None:
    if reply[0] == b"clash":
        queue, shelf = reply[1].decode(), reply[2].decode()
        raise ConfigError(
            f"{shelf!r} is declared as a queue and as the dead-letter shelf of "
            f"queue {queue!r}; {consequence}: rename one of the two"
        )


def _declare_tasks(tasks: Sequence[TaskSettings]) -> Steps[tuple[TaskSettings | None, ...]]:
    args: list[str | bytes | int] = []
    for settings in tasks:
        unlimited = settings == TaskSettings(settings.name)
        args += (settings.name, b"" if unlimited else _text(settings))
    reply = yield Script("declare_tasks", args)
    yield from _reopen()
    return tuple(_read_task(text) if text else None for text in reply)
