# SPDX-License-Identifier: MIT
"""Settings of queues and tasks; pausing, closing, and the depth of a queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from packhorse.core.policies.gates import Gate, GateKind, pause_gate
from packhorse.errors import ConfigError
from packhorse.stores.memory.state import Access, on_state, plan
from packhorse.stores.plan import Plan
from packhorse.stores.requests import QueueSettings, QueueState, TaskSettings


class MemoryQueues:
    """Queues, in memory."""

    @on_state()
    def declare(
        self, access: Access, queues: Sequence[QueueSettings]
    ) -> tuple[QueueSettings | None, ...]:
        state = access.state
        _refuse_shelves_as_queues(
            state.declared | {settings.name: settings for settings in queues} | state.overrides
        )
        replaced: list[QueueSettings | None] = []
        for settings in queues:
            before, held = state.declared.get(settings.name), state.settings(settings.name)
            replaced.append(None if before == settings else before)
            state.declared[settings.name] = settings
            _wake_if_changed(access, held)
        return tuple(replaced)

    def declare_tasks(self, tasks: Sequence[TaskSettings]) -> Plan[tuple[TaskSettings | None, ...]]:
        asked = tuple(tasks)
        return plan("declare_tasks", lambda access: tuple(_set_task(access, one) for one in asked))

    @on_state()
    def override(self, access: Access, queue: str, settings: QueueSettings | None) -> bool:
        state, held = access.state, access.state.settings(queue)
        before = state.overrides.get(queue)
        if settings is None:
            state.overrides.pop(queue, None)
        else:
            _refuse_shelves_as_queues(state.declared | state.overrides | {queue: settings})
            state.overrides[queue] = settings
        _wake_if_changed(access, held)
        return before != settings

    def pause(
        self, queue: str, *, paused: bool, key: str | None = None, tenant: str | None = None
    ) -> Plan[bool]:
        gate = pause_gate(queue, key, tenant)
        if gate is None:
            return plan("pause", partial(_pause, queue=queue, paused=paused))
        return plan("pause", partial(_pause_gate, gate=gate, paused=paused))

    @on_state()
    def close_queue(self, access: Access, queue: str, *, closed: bool) -> bool:
        if closed == (queue in access.state.closed):
            return False
        if closed:
            access.state.closed.add(queue)
        else:
            access.state.closed.remove(queue)
        return True

    @on_state(writes=False)
    def queues(self, access: Access, *, holding: bool = True) -> tuple[QueueState, ...]:
        state = access.state
        held = {queue for queue, _ in state.counts} if holding else set()
        pauses = [gate.name for gate in state.shut if gate.kind is GateKind.PAUSE]
        known = {*state.configured, *state.paused, *state.closed, *held}
        return tuple(
            QueueState(
                settings=state.settings(queue),
                paused=queue in state.paused,
                declared=queue in state.declared,
                closed=queue in state.closed,
                overridden=queue in state.overrides,
                paused_keys=_paused_names(pauses, queue, "key"),
                paused_tenants=_paused_names(pauses, queue, "tenant"),
                held_bytes=_held_bytes(access, queue),
            )
            for queue in sorted(known | {queue for queue, _, _ in pauses})
        )

    @on_state(writes=False)
    def tasks(self, access: Access) -> tuple[TaskSettings, ...]:
        return tuple(settings for _, settings in sorted(access.state.tasks.items()))

    def depth(self, queue: str) -> Plan[int]:
        return plan("depth", lambda access: access.state.depth(queue), writes=False)


def _refuse_shelves_as_queues(configured: Mapping[str, QueueSettings]) -> None:
    for settings in configured.values():
        if settings.dead_letter in configured:
            raise ConfigError(
                f"{settings.dead_letter!r} is declared as a queue and as the dead-letter shelf of "
                f"queue {settings.name!r}; no declaration was kept: rename one of the two"
            )


def _wake_if_changed(access: Access, before: QueueSettings) -> None:
    """Wake workers and producers if the settings in effect have changed."""
    if access.state.settings(before.name) != before:
        access.wake(f"queue:{before.name}")
        access.wake(f"room:{before.name}")


def _set_task(access: Access, settings: TaskSettings) -> TaskSettings | None:
    tasks, name = access.state.tasks, settings.name
    unlimited = TaskSettings(name)
    before = tasks.pop(name, unlimited)
    if settings != unlimited:
        tasks[name] = settings
    if before == settings:
        return None
    access.wake_task(name)
    return None if before == unlimited else before


def _pause(access: Access, queue: str, *, paused: bool) -> bool:
    state = access.state
    if paused == (queue in state.paused):
        return False
    if paused:
        state.paused.add(queue)
    else:
        state.paused.remove(queue)
        access.wake(f"queue:{queue}")
    return True


def _pause_gate(access: Access, gate: Gate, *, paused: bool) -> bool:
    shut = access.state.shut
    if paused == (gate in shut):
        return False
    if paused:
        shut[gate] = None
    else:
        del shut[gate]
        access.wake(f"queue:{gate.name[0]}")
    return True


def _held_bytes(access: Access, queue: str) -> int | None:
    bounded = access.state.settings(queue).max_bytes is not None
    return access.state.held_bytes(queue) if bounded else None


def _paused_names(pauses: Iterable[tuple[str, ...]], queue: str, what: str) -> tuple[str, ...]:
    return tuple(sorted(name for where, kind, name in pauses if (where, kind) == (queue, what)))
