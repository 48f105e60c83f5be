# SPDX-License-Identifier: MIT
"""Queues and tasks on SQLite: what they are set to, paused or closed, and how deep they are."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from packhorse.errors import ConfigError
from packhorse.policies.gates import Gate, key_pause, tenant_pause
from packhorse.stores.plan import Plan, Steps, Wake
from packhorse.stores.requests import QueueSettings, QueueState, TaskSettings
from packhorse.stores.sqlite.lines import gate_text, let_go_all, read_gate
from packhorse.stores.sqlite.rows import json_text
from packhorse.stores.sqlite.settings import queue_settings
from packhorse.stores.sqlite.statements import Change, Rows, sql

__all__ = ["SqliteQueues"]


class SqliteQueues:
    """See `QueueStore`."""

    def declare(self, queues: Sequence[QueueSettings]) -> Plan[tuple[QueueSettings | None, ...]]:
        return Plan("declare", lambda: _declare(queues), look=lambda: _undeclared(queues))

    def declare_tasks(self, tasks: Sequence[TaskSettings]) -> Plan[tuple[TaskSettings | None, ...]]:
        return Plan("declare_tasks", lambda: _declare_tasks(tasks))

    def override(self, queue: str, settings: QueueSettings | None) -> Plan[bool]:
        return Plan("override", lambda: _override(queue, settings))

    def pause(
        self, queue: str, *, paused: bool, key: str | None = None, tenant: str | None = None
    ) -> Plan[bool]:
        if key is not None and tenant is not None:
            raise ConfigError(
                f"key {key!r} and tenant {tenant!r} of queue {queue!r} cannot be paused or resumed "
                "together; nothing was changed: call once for each"
            )
        if key is None and tenant is None:
            return Plan("pause", lambda: _flag(queue, "paused", on=paused))
        gate = tenant_pause(queue, tenant or "") if key is None else key_pause(queue, key)
        return Plan("pause", lambda: _pause_gate(gate, paused=paused))

    def close_queue(self, queue: str, *, closed: bool) -> Plan[bool]:
        return Plan("close_queue", lambda: _flag(queue, "closed", on=closed))

    def queues(self) -> Plan[tuple[QueueState, ...]]:
        return Plan("queues", _queues, writes=False)

    def tasks(self) -> Plan[tuple[TaskSettings, ...]]:
        def steps() -> Steps[tuple[TaskSettings, ...]]:
            rows = yield Rows(sql("tasks"))
            return tuple(msgspec.json.decode(text, type=TaskSettings) for (text,) in rows)

        return Plan("tasks", steps, writes=False)

    def depth(self, queue: str) -> Plan[int]:
        def steps() -> Steps[int]:
            [(count,)] = yield Rows(sql("depth"), (queue,))
            return int(count)

        return Plan("depth", steps, writes=False)


def _undeclared(
    queues: Sequence[QueueSettings],
) -> Steps[tuple[QueueSettings | None, ...] | None]:
    """Nothing to write when every declaration is known: the usual start of a worker."""
    for queue in queues:
        known, _, _ = yield from _known(queue.name)
        if known != queue:
            return None
    return (None,) * len(queues)


def _declare(queues: Sequence[QueueSettings]) -> Steps[tuple[QueueSettings | None, ...]]:
    replaced: list[QueueSettings | None] = []
    for queue in queues:
        known, overridden, _ = yield from _known(queue.name)
        replaced.append(known if known != queue else None)
        yield from _hold(queue.name, queue, overridden)
    yield from _refuse_conflicts()
    return tuple(replaced)


def _override(queue: str, settings: QueueSettings | None) -> Steps[bool]:
    declared, before, _ = yield from _known(queue)
    if before == settings:
        return False
    yield from _hold(queue, declared, settings)
    if settings is not None:
        yield from _refuse_conflicts()
    return True


def _hold(
    name: str, declared: QueueSettings | None, overridden: QueueSettings | None
) -> Steps[None]:
    """Keep both; those that hold from now on may let jobs go, or let some in."""
    _, _, before = yield from _known(name)
    held = overridden or declared
    settings = held or QueueSettings(name)
    limits = (settings.concurrency, settings.max_depth)
    judged = (settings.max_depth, settings.ageing_us, settings.tenant_rate)
    values = {
        "name": name,
        "priority": settings.priority,
        "dead_letter": settings.dead_letter,
        "limited": int(any(limit is not None for limit in limits)),
        "special": int(any(setting is not None for setting in judged)),
        "declared": None if declared is None else json_text(declared),
        "overridden": None if overridden is None else json_text(overridden),
        "settings": None if held is None else json_text(held),
    }
    yield Change(sql("queue_hold"), values)
    if (before or QueueSettings(name)) != settings:
        yield from let_go_all("queue", name)
        yield Wake(f"queue:{name}")
        yield Wake(f"room:{name}")


def _known(
    name: str,
) -> Steps[tuple[QueueSettings | None, QueueSettings | None, QueueSettings | None]]:
    """Settings as declared, as overridden, and as they hold."""
    rows = yield Rows(sql("queue_known"), (name,))
    texts = rows[0] if rows else (None, None, None)
    declared, overridden, held = [
        None if text is None else queue_settings(name, text) for text in texts
    ]
    return declared, overridden, held


def _refuse_conflicts() -> Steps[None]:
    conflicts = yield Rows(sql("queue_conflicts"))
    for shelf, owner in conflicts:
        raise ConfigError(
            f"{shelf!r} is declared as a queue and is also the dead-letter shelf of {owner!r}; "
            "nothing is ever claimed from a shelf: give one of them another name"
        )


def _declare_tasks(tasks: Sequence[TaskSettings]) -> Steps[tuple[TaskSettings | None, ...]]:
    replaced = []
    for task in tasks:
        before = yield from _declare_task(task)
        replaced.append(before)
    return tuple(replaced)


def _declare_task(task: TaskSettings) -> Steps[TaskSettings | None]:
    unlimited = TaskSettings(task.name)
    rows = yield Rows(sql("task_known"), (task.name,))
    before = msgspec.json.decode(rows[0][0], type=TaskSettings) if rows else unlimited
    if before == task:
        return None
    if task == unlimited:
        yield Change(sql("task_forget"), (task.name,))
    else:
        yield Change(sql("task_keep"), (task.name, json_text(task)))
    yield from let_go_all("task", task.name)
    waiting = yield Rows(sql("queues_of_task"), (task.name,))
    for (queue,) in waiting:
        yield Wake(f"queue:{queue}")
    return None if before == unlimited else before


def _flag(queue: str, flag: str, *, on: bool) -> Steps[bool]:
    """Set or clear paused or closed; says whether that changed anything."""
    text = sql("queue_flag").format(flag=flag)
    changed = yield Change(text, {"queue": queue, "on": int(on)})
    if changed > 0 and not on:
        yield Wake(f"queue:{queue}")
    return bool(changed > 0)


def _pause_gate(gate: Gate, *, paused: bool) -> Steps[bool]:
    text = gate_text(gate)
    if paused:
        changed = yield Change(sql("shut"), (text, gate.name[0]))
    else:
        changed = yield Change(sql("shut_open"), (text,))
        if changed > 0:
            yield from let_go_all("blocked_by", text)
            yield Wake(f"queue:{gate.name[0]}")
    return bool(changed > 0)


def _queues() -> Steps[tuple[QueueState, ...]]:
    rows = yield Rows(sql("queues"))
    pauses = yield Rows(sql("pauses"))
    gates = [read_gate(text).name for (text,) in pauses]
    return tuple(
        QueueState(
            queue_settings(name, settings),
            paused=bool(paused),
            declared=bool(declared),
            closed=bool(closed),
            overridden=bool(overridden),
            paused_keys=_names(gates, name, "key"),
            paused_tenants=_names(gates, name, "tenant"),
        )
        for name, settings, paused, declared, closed, overridden in rows
    )


def _names(gates: Sequence[tuple[str, ...]], queue: str, what: str) -> tuple[str, ...]:
    return tuple(sorted(gate[2] for gate in gates if gate[:2] == (queue, what)))
