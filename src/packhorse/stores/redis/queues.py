# SPDX-License-Identifier: MIT
"""Queues on Redis: settings of queues and tasks, pauses, names of gates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NoReturn

import msgspec

from packhorse.core.policies.gates import Gate, GateKind
from packhorse.errors import ConfigError, SchemaOutOfDate
from packhorse.stores.plan import Plan, Steps, planned
from packhorse.stores.redis.layout import GATES
from packhorse.stores.redis.scripts import Argument, Script
from packhorse.stores.requests import QueueSettings, QueueState, TaskSettings

#: Scripts of one change of settings: each opens a bounded number of groups of lines.
_REOPENINGS_MAX: Final = 10_000
_text: Final = msgspec.json.Encoder(order="deterministic").encode
_read_queue: Final = msgspec.json.Decoder(QueueSettings).decode
_read_task: Final = msgspec.json.Decoder(TaskSettings).decode


class RedisQueues:
    """See `QueueStore`."""

    @planned()
    def declare(self, queues: Sequence[QueueSettings]) -> Steps[tuple[QueueSettings | None, ...]]:
        args: list[Argument] = []
        for settings in queues:
            args += (settings.name, _text(settings), _text(QueueSettings(settings.name)))
        before = yield from _change("declare", args, queues)
        return tuple(_read_queue(text) if text else None for text in before)

    @planned()
    def declare_tasks(
        self, tasks: Sequence[TaskSettings]
    ) -> Steps[tuple[TaskSettings | None, ...]]:
        args: list[Argument] = []
        for settings in tasks:
            unlimited = settings == TaskSettings(settings.name)
            args += (settings.name, b"" if unlimited else _text(settings))
        reply = yield Script("declare_tasks", args)
        yield from _reopen()
        return tuple(_read_task(text) if text else None for text in reply)

    @planned()
    def override(self, queue: str, settings: QueueSettings | None) -> Steps[bool]:
        text = b"" if settings is None else _text(settings)
        args: list[Argument] = [queue, text, _text(QueueSettings(queue))]
        (changed,) = yield from _change("override", args, () if settings is None else (settings,))
        return bool(changed)

    def pause(
        self, queue: str, *, paused: bool, key: str | None = None, tenant: str | None = None
    ) -> Plan[bool]:
        if key is not None and tenant is not None:
            raise ConfigError(
                f"key {key!r} and tenant {tenant!r} of queue {queue!r} cannot be paused or resumed "
                "together; nothing was changed: call once for each"
            )
        gate = "" if key is None else _key_pause(queue, key)
        if tenant is not None:
            gate = _tenant_pause(queue, tenant)
        return Plan("pause", partial(_changed, "pause", [queue, int(paused), gate]))

    def close_queue(self, queue: str, *, closed: bool) -> Plan[bool]:
        return Plan("close_queue", partial(_changed, "close_queue", [queue, int(closed)]))

    @planned(writes=False)
    def queues(self, *, holding: bool = True) -> Steps[tuple[QueueState, ...]]:
        flags, declarations, wishes, counts, paused_gates, sizes = yield Script("queues")
        held = dict(zip(sizes[::2], map(int, sizes[1::2]), strict=True))
        declared, overrides = _settings(declarations), _settings(wishes)
        paused = {queue.decode() for queue, is_so, _ in flags if is_so == b"1"}
        closed = {queue.decode() for queue, _, is_so in flags if is_so == b"1"}
        holds = {field.decode().partition(":")[2] for field in counts if holding}
        pauses = {gate_of(name.decode()).name for name in paused_gates}
        known = {*declared, *overrides, *paused, *closed, *holds, *(name[0] for name in pauses)}
        settings = {queue: overrides.get(queue) or declared.get(queue) for queue in known}
        return tuple(
            QueueState(
                settings=(one := settings[queue] or QueueSettings(queue)),
                paused=queue in paused,
                declared=queue in declared,
                closed=queue in closed,
                overridden=queue in overrides,
                paused_keys=_names(pauses, queue, "key"),
                paused_tenants=_names(pauses, queue, "tenant"),
                held_bytes=None if one.max_bytes is None else held.get(queue.encode(), 0),
            )
            for queue in sorted(known)
        )

    @planned(writes=False)
    def tasks(self) -> Steps[tuple[TaskSettings, ...]]:
        rows = yield Script("tasks")
        found = (_read_task(text) for text in rows[1::2])
        return tuple(sorted(found, key=lambda settings: settings.name))

    @planned(writes=False)
    def depth(self, queue: str) -> Steps[int]:
        depth: int = yield Script("depth", (queue,))
        return depth


def _changed(script: str, args: list[Argument]) -> Steps[bool]:
    reply = yield Script(script, args)
    return bool(reply)


def _change(
    script: str, args: Sequence[Argument], queues: Sequence[QueueSettings]
) -> Steps[Sequence[Any]]:
    """Change settings of queues with a script, and the indexes of those that drop or weigh jobs."""
    for settings in queues:
        if settings.on_full == "drop":  # it must know its least urgent job before
            yield from _look_at_waiting(settings, "sheds")
    reply: list[Any] = yield Script(script, args)
    if reply[0] != b"ok":
        _refuse(*(each.decode() for each in reply))
    for settings in queues:
        if settings.max_bytes is not None:
            yield from _look_at_waiting(settings, "weighed")
    yield from _reopen()
    return reply[1:]


def _look_at_waiting(settings: QueueSettings, flag: str) -> Steps[None]:
    after: Any = b"0"
    while after:
        after = yield Script("look_at_waiting", [flag, settings.name, after])


def _reopen() -> Steps[None]:
    """Let claims look again at what the old settings held back, in parts."""
    for _ in range(_REOPENINGS_MAX):
        more = yield Script("reopen")
        if not more:
            return


def _refuse(word: str, name: str, shelf: str = "") -> NoReturn:
    if word == "older":
        raise SchemaOutOfDate(
            f"worker {name} is of a release that knows no bounds by bytes, and would end jobs "
            "uncounted; no declaration was kept: upgrade or stop it first"
        )
    raise ConfigError(
        f"{shelf!r} is declared as a queue and as the dead-letter shelf of queue {name!r}; no "
        "declaration was kept: rename one of the two"
    )


def _settings(rows: Sequence[bytes]) -> Mapping[str, QueueSettings]:
    """From name, text, name, text, ..."""
    return {
        name.decode(): _read_queue(text) for name, text in zip(rows[::2], rows[1::2], strict=True)
    }


def _names(pauses: Iterable[tuple[str, ...]], queue: str, what: str) -> tuple[str, ...]:
    return tuple(sorted(name for where, kind, name in pauses if (where, kind) == (queue, what)))


# ----------------------------------------------------------------------------- names of gates
# A letter for the kind, then what the gate is about. Parts that something follows have their length
# before them, since they may hold any character. The scripts use the same names.


def _with_length(text: str) -> str:
    """A text with its length in bytes before it."""
    return f"{len(text.encode())}:{text}"


def _tenant_pause(queue: str, tenant: str) -> str:
    """The name of `policies.gates.tenant_pause`."""
    return f"{GATES['pause']}t{_with_length(queue)}{tenant}"


def _key_pause(queue: str, key: str) -> str:
    """The name of `policies.gates.key_pause`."""
    return f"{GATES['pause']}k{_with_length(queue)}{key}"


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
        GATES["pause"]: _pause,
        GATES["order"]: _order,
        GATES["task_concurrency"]: _alone(GateKind.TASK_CONCURRENCY),
        GATES["task_concurrency_key"]: _two(GateKind.TASK_CONCURRENCY),
        GATES["queue_concurrency"]: _alone(GateKind.QUEUE_CONCURRENCY),
        GATES["task_rate"]: _alone(GateKind.TASK_RATE),
        GATES["task_rate_key"]: _two(GateKind.TASK_RATE),
        GATES["tenant_rate"]: _two(GateKind.TENANT_RATE),
        GATES["queue_rate"]: _alone(GateKind.QUEUE_RATE),
    }
)
