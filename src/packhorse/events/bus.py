# SPDX-License-Identifier: MIT
"""The bus: passes events to their observers."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol

import msgspec

from packhorse.core.redaction import Redact, redact_default, redacted_text
from packhorse.core.text import stack_of, text_of
from packhorse.errors import ConfigError
from packhorse.events import groups
from packhorse.events import kinds as every_kind
from packhorse.events.kinds import Event, JobEvent, ObserverFailed

Observer = Callable[[Any], object]

_TYPES: Final = tuple(
    kind
    for kind in (vars(every_kind) | vars(groups)).values()
    if isinstance(kind, type) and issubclass(kind, Event) and kind.name
)
#: Every event by its name.
EVENTS: Final[Mapping[str, type[Event]]] = MappingProxyType({kind.name: kind for kind in _TYPES})


class TaskNames(Protocol):
    """What a bus asks about tasks."""

    def worker_id_of(self, name: str, /) -> str:
        """Return the id of a task's contract."""
        ...

    def place_of(self, name: str, /) -> str:
        """Return `file:line` of a task's function."""
        ...


class EventBus:
    """Passes events to their observers; an observer never affects a job."""

    def __init__(self, *, redact: Redact | None = None, tasks: TaskNames | None = None) -> None:
        # Replaced as a whole on every change, so that emitting from any thread needs no lock.
        self.observers: Mapping[type[Event], tuple[Observer, ...]] = {}
        #: Masks values and exception text; see `core.redaction`.
        self.redact: Redact = redact or redact_default
        self._tasks = tasks

    def place_of(self, task: str) -> str:
        """Return `file:line` of a task's function, empty if that is not known; for log records."""
        return "" if self._tasks is None else self._tasks.place_of(task)

    def subscribe(self, event: type[Event] | str, observer: Observer) -> Callable[[], None]:
        """Call `observer` with every such event; return a function that ends the subscription.

        `event` is a class, a name such as `job.started`, a family such as `job.*`, or `*`.
        """
        if inspect.iscoroutinefunction(observer):
            raise ConfigError(
                f"observer {_label(observer)} is async; events are told to plain functions: "
                "make it a def, and start a task in it if it must wait"
            )
        kinds = _kinds(event)
        table = dict(self.observers)
        for kind in kinds:
            table[kind] = (*table.get(kind, ()), observer)
        self.observers = table
        return lambda: self._unsubscribe(kinds, observer)

    def wants(self, event: type[Event]) -> bool:
        """Whether there are observers; if not, the event need not be created."""
        return event in self.observers

    def emit(self, event: Event) -> None:
        """Call the observers of this kind of event."""
        observers = self.observers.get(type(event), ())
        if observers and isinstance(event, JobEvent) and not event.worker_id:
            worker_id = event.task if self._tasks is None else self._tasks.worker_id_of(event.task)
            named = msgspec.structs.replace(event, worker_id=worker_id)
            event = named.carrying(event.exception)
        for observer in observers:
            try:
                observer(event)
            except BaseException as error:  # noqa: BLE001 - an observer must not affect the job
                self._report(observer, event, error)

    def _report(self, observer: Observer, event: Event, error: BaseException) -> None:
        if isinstance(event, ObserverFailed):
            return  # an observer of failures failed: reporting that would not end
        self.emit(
            ObserverFailed(
                worker=event.worker,
                observer=_label(observer),
                event=event.name,
                error_type=type(error).__name__,
                error_message=redacted_text(self.redact, text_of(error)),
                error_stack=redacted_text(self.redact, stack_of(error) or ""),
                job_id=getattr(event, "job_id", ""),
            ).carrying(error)
        )

    def _unsubscribe(self, kinds: tuple[type[Event], ...], observer: Observer) -> None:
        table = dict(self.observers)
        for kind in kinds:
            left = tuple(other for other in table.get(kind, ()) if other is not observer)
            table[kind] = left
            if not left:
                del table[kind]
        self.observers = table


def _kinds(event: type[Event] | str) -> tuple[type[Event], ...]:
    """Return the event types that a class, a name, a family or `*` selects."""
    if not isinstance(event, str):
        kinds = tuple(kind for kind in _TYPES if issubclass(kind, event))
    elif event.endswith("*"):
        kinds = tuple(kind for name, kind in EVENTS.items() if name.startswith(event[:-1]))
    else:
        kinds = (EVENTS[event],) if event in EVENTS else ()
    if not kinds:
        near = difflib.get_close_matches(str(event), EVENTS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the events are {', '.join(EVENTS)}"
        raise ConfigError(f"there is no event {event!r}; {hint}")
    return kinds


def _label(observer: Observer) -> str:
    return getattr(observer, "__qualname__", None) or repr(observer)
