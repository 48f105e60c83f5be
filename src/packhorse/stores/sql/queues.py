# SPDX-License-Identifier: MIT
"""Settings of queues and tasks; pausing, closing, and the depth of a queue."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.core.constraints import queue_constraints
from packhorse.core.policies.gates import Gate, pause_gate
from packhorse.core.sizes import THE_STORE
from packhorse.errors import ConfigError
from packhorse.stores.plan import Plan, Steps, Wake, planned
from packhorse.stores.requests import QueueSettings, QueueState, TaskSettings
from packhorse.stores.sql.dialect import Dialect
from packhorse.stores.sql.limit_state import bytes_of, read_task_settings, scoped
from packhorse.stores.sql.lines import gate_text, read_gate, unblock_all
from packhorse.stores.sql.new_jobs import depth_of
from packhorse.stores.sql.rows import json_text, queue_settings
from packhorse.stores.sql.statements import Change, Rows, Send


class SqlQueues:
    """See `QueueStore`."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def declare(self, queues: Sequence[QueueSettings]) -> Plan[tuple[QueueSettings | None, ...]]:
        dialect = self._dialect
        return Plan(
            "declare", lambda: _declare(dialect, queues), look=lambda: _undeclared(dialect, queues)
        )

    def declare_tasks(self, tasks: Sequence[TaskSettings]) -> Plan[tuple[TaskSettings | None, ...]]:
        dialect = self._dialect
        return Plan(
            "declare_tasks",
            lambda: _declare_tasks(dialect, tasks),
            look=lambda: _tasks_undeclared(dialect, tasks),
        )

    @planned()
    def override(self, queue: str, settings: QueueSettings | None) -> Steps[bool]:
        dialect = self._dialect
        yield from dialect.lock_all()
        declared, before, _ = yield from _known(dialect, queue)
        if before == settings:
            return False
        yield from _hold(dialect, queue, declared, settings)
        if settings is not None:
            yield from _refuse_conflicts(dialect)
        return True

    def pause(
        self, queue: str, *, paused: bool, key: str | None = None, tenant: str | None = None
    ) -> Plan[bool]:
        gate = pause_gate(queue, key, tenant)
        if gate is None:
            return Plan("pause", lambda: _flag(self._dialect, queue, "paused", on=paused))
        return Plan("pause", lambda: _pause_gate(self._dialect, gate, paused=paused))

    def close_queue(self, queue: str, *, closed: bool) -> Plan[bool]:
        return Plan("close_queue", lambda: _flag(self._dialect, queue, "closed", on=closed))

    @planned(writes=False)
    def queues(self, *, holding: bool = True) -> Steps[tuple[QueueState, ...]]:
        return (yield from _queues(self._dialect, holding=holding))

    @planned(writes=False)
    def tasks(self) -> Steps[tuple[TaskSettings, ...]]:
        rows = yield Rows(self._dialect.sql("tasks"))
        return tuple(read_task_settings(text) for (text,) in rows)

    @planned(writes=False)
    def depth(self, queue: str) -> Steps[int]:
        return (yield from depth_of(self._dialect, queue, 0))


def _undeclared(
    dialect: Dialect,
    queues: Sequence[QueueSettings],
) -> Steps[tuple[QueueSettings | None, ...] | None]:
    """Return the answer if every declaration is known, as when a worker restarts."""
    for queue in queues:
        known, _, _ = yield from _known(dialect, queue.name)
        if known != queue:
            return None
    return (None,) * len(queues)


def _declare(
    dialect: Dialect, queues: Sequence[QueueSettings]
) -> Steps[tuple[QueueSettings | None, ...]]:
    yield from dialect.lock_all()
    replaced: list[QueueSettings | None] = []
    for queue in queues:
        known, overridden, _ = yield from _known(dialect, queue.name)
        replaced.append(known if known != queue else None)
        yield from _hold(dialect, queue.name, queue, overridden)
    yield from _refuse_conflicts(dialect)
    return tuple(replaced)


def _hold(
    dialect: Dialect,
    name: str,
    declared: QueueSettings | None,
    overridden: QueueSettings | None,
) -> Steps[None]:
    """Write both settings; if those in effect change, unblock jobs and wake waiters."""
    _, _, before = yield from _known(dialect, name)
    held = overridden or declared
    settings = held or QueueSettings(name)
    limits = (settings.concurrency, settings.max_depth, settings.max_bytes)
    values = {
        "name": name,
        "priority": settings.priority,
        "dead_letter": settings.dead_letter,
        "limited": name != THE_STORE and any(limit is not None for limit in limits),
        "special": bool(queue_constraints(settings)),
        "declared": None if declared is None else json_text(declared),
        "overridden": None if overridden is None else json_text(overridden),
        "settings": None if held is None else json_text(held),
    }
    yield Send(dialect.sql("queue_hold"), values)
    yield from dialect.settings_changed()
    if settings.max_bytes is not None:
        yield Send(*scoped(dialect, "bytes_begin", name))
    if (before or QueueSettings(name)) != settings:
        yield from unblock_all(dialect, "queue", name)
        yield Wake(f"queue:{name}")
        yield Wake(f"room:{name}")


def _known(
    dialect: Dialect, name: str
) -> Steps[tuple[QueueSettings | None, QueueSettings | None, QueueSettings | None]]:
    """Return the settings as declared, as overridden, and as in effect."""
    rows = yield Rows(dialect.sql("queue_known"), (name,))
    texts = rows[0] if rows else (None, None, None)
    declared, overridden, held = [
        None if text is None else queue_settings(name, text) for text in texts
    ]
    return declared, overridden, held


def _refuse_conflicts(dialect: Dialect) -> Steps[None]:
    conflicts = yield Rows(dialect.sql("queue_conflicts"))
    for shelf, owner in conflicts:
        raise ConfigError(
            f"{shelf!r} is declared as a queue and is also the dead-letter shelf of {owner!r}; "
            "nothing is ever claimed from a shelf: give one of them another name"
        )


def _tasks_undeclared(
    dialect: Dialect, tasks: Sequence[TaskSettings]
) -> Steps[tuple[TaskSettings | None, ...] | None]:
    """Do as `_undeclared`, for tasks."""
    rows = yield Rows(dialect.sql("tasks"))
    known = {task.name: task for task in (read_task_settings(text) for (text,) in rows)}
    if any(known.get(task.name, TaskSettings(task.name)) != task for task in tasks):
        return None
    return (None,) * len(tasks)


def _declare_tasks(
    dialect: Dialect, tasks: Sequence[TaskSettings]
) -> Steps[tuple[TaskSettings | None, ...]]:
    yield from dialect.lock_all()
    replaced = []
    for task in tasks:
        before = yield from _declare_task(dialect, task)
        replaced.append(before)
    return tuple(replaced)


def _declare_task(dialect: Dialect, task: TaskSettings) -> Steps[TaskSettings | None]:
    unlimited = TaskSettings(task.name)
    rows = yield Rows(dialect.sql("task_known"), (task.name,))
    before = read_task_settings(rows[0][0]) if rows else unlimited
    if before == task:
        return None
    if task == unlimited:
        yield Send(dialect.sql("task_forget"), (task.name,))
        yield from dialect.settings_changed()
    else:
        yield Send(dialect.sql("task_keep"), (task.name, json_text(task)))
        yield from dialect.settings_changed(task.name)
    yield from unblock_all(dialect, "task", task.name)
    waiting = yield Rows(dialect.sql("queues_of_task"), (task.name,))
    for (queue,) in waiting:
        yield Wake(f"queue:{queue}")
    return None if before == unlimited else before


def _flag(dialect: Dialect, queue: str, flag: str, *, on: bool) -> Steps[bool]:
    """Set or clear `paused` or `closed`; return whether that changed anything."""
    yield from dialect.lock_all()
    changed = yield Change(dialect.sql("queue_flag", flag=flag), {"queue": queue, "on": on})
    if changed > 0:
        yield from dialect.settings_changed()
    if changed > 0 and not on:
        yield Wake(f"queue:{queue}")
    return bool(changed > 0)


def _pause_gate(dialect: Dialect, gate: Gate, *, paused: bool) -> Steps[bool]:
    yield from dialect.lock_all()
    text = gate_text(gate)
    if paused:
        changed = yield Change(dialect.sql("shut"), (text, gate.name[0]))
    else:
        changed = yield Change(dialect.sql("shut_open"), (text,))
        if changed > 0:
            yield from unblock_all(dialect, "blocked_by", text)
            yield Wake(f"queue:{gate.name[0]}")
    if changed > 0:
        yield from dialect.settings_changed()
    return bool(changed > 0)


def _queues(dialect: Dialect, *, holding: bool) -> Steps[tuple[QueueState, ...]]:
    rows = yield Rows(dialect.sql("queues"), {"holding": holding})
    pauses = yield Rows(dialect.sql("pauses"))
    gates = [read_gate(text).name for (text,) in pauses]
    held: dict[str, int] = {}
    for name, settings, *_ in rows:
        if queue_settings(name, settings).max_bytes is not None:
            held[name] = yield from bytes_of(dialect, name)
    return tuple(
        QueueState(
            queue_settings(name, settings),
            paused=bool(paused),
            declared=bool(declared),
            closed=bool(closed),
            overridden=bool(overridden),
            paused_keys=_names(gates, name, "key"),
            paused_tenants=_names(gates, name, "tenant"),
            held_bytes=held.get(name),
        )
        for name, settings, paused, declared, closed, overridden in rows
    )


def _names(gates: Sequence[tuple[str, ...]], queue: str, what: str) -> tuple[str, ...]:
    return tuple(sorted(gate[2] for gate in gates if gate[:2] == (queue, what)))
