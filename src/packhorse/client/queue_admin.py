# SPDX-License-Identifier: MIT
"""What an operator does to queues while they are in use: look, pause, close, and set limits.

And where an app keeps things beside its store: artifacts, and outboxes.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from packhorse.artifacts import Place, PlaceSource, open_place
from packhorse.client.declarations import changed_settings
from packhorse.client.store_access import Asks
from packhorse.client.submission import warn_of_mistyped_queue
from packhorse.core.generators import awaited, blocking
from packhorse.core.job_logs import log_level
from packhorse.core.options import LimitOptions, chosen_options, queue_text, stored_text
from packhorse.core.sizes import THE_STORE
from packhorse.errors import ConfigError
from packhorse.stores.plan import Asking
from packhorse.stores.requests import QueueSettings, QueueState

if TYPE_CHECKING:
    from packhorse.client.outbox import Outbox


class PartOptions(TypedDict, total=False):
    """Selects jobs of a queue; all of them where neither is given."""

    key: str  #: those with that ordering, concurrency or rate key
    tenant: str  #: that tenant's; "" are those that belong to none


class QueueAdmin(Asks):
    """The verbs of an app that are about queues and outboxes. Every one has an a-twin."""

    url: str | None
    folder: str

    def _keep(self, artifacts: str | os.PathLike[str] | None, job_logs: str | None) -> None:
        """Set where artifacts are kept, and the level from which on log lines are kept."""
        self._log_level = log_level(job_logs)
        path = None if artifacts is None else os.fspath(artifacts)
        # With encryption no result becomes an artifact, which would be plain text.
        chosen = bool(path) and not self._connection.places.sealed
        self._connection.places = PlaceSource(lambda: self._open_place(path), chosen=chosen)

    def _open_place(self, path: str | None) -> Place | None:
        return open_place(path, self.url, self.folder, self._connection.store.label)

    @property
    def places(self) -> PlaceSource:
        """Where artifacts of its jobs are kept."""
        return self._connection.places

    def outbox(self, engine: object, *, table: str = "packhorse_outbox") -> Outbox:
        """Let `tx=` take connections of a database that the store of this app is not in.

        `engine` is an SQLAlchemy Engine or AsyncEngine of PostgreSQL or SQLite, or a URL. What
        transactions ask for is written to `table` there, and this app's workers bring it to the
        store. Nothing is opened yet: `create()` of the answer makes the table.
        """
        # Few have one, and the others do not pay for it.
        from packhorse.client.outbox import Outbox, Outboxes  # noqa: PLC0415
        from packhorse.client.outbox.databases import database_of  # noqa: PLC0415

        name = stored_text(table, "outbox(): table")
        database, connection = database_of(engine, self.folder), self._connection
        made = Outbox(database, name, connection.clock)
        connection.outboxes = Outboxes((*connection.outboxes, made))
        connection.transactions.outboxes = connection.outboxes
        return made

    @property
    def outboxes(self) -> tuple[Outbox, ...]:
        """The outboxes that were declared."""
        return self._connection.outboxes

    @blocking
    def depth(self, queue: str) -> Asking[int]:
        """Count the waiting jobs of a queue: pending, queued, failed or timeout."""
        depth: int = yield self._connection.store.queues.depth(queue)
        return depth

    adepth = awaited(depth)

    @blocking
    def pause(self, queue: str, **part: Unpack[PartOptions]) -> Asking[bool]:
        """Stop giving out a queue's jobs; running ones go on. Return False if it was paused before.

        With `key` only those with that ordering, concurrency or rate key, with `tenant` only that
        tenant's. A key or a tenant that is None is a `ConfigError`: it would mean all of them.
        """
        return self._paused(queue, part, paused=True)

    apause = awaited(pause)

    @blocking
    def resume(self, queue: str, **part: Unpack[PartOptions]) -> Asking[bool]:
        """End a `pause` with the same arguments; return whether there was one."""
        return self._paused(queue, part, paused=False)

    aresume = awaited(resume)

    @blocking
    def close_queue(self, queue: str) -> Asking[bool]:
        """Refuse new jobs with `QueueClosed`; those stored go on. Return whether it was open.

        Retries and redrives of stored jobs go on too.
        """
        return self._closed(queue, closed=True)

    aclose_queue = awaited(close_queue)

    @blocking
    def open_queue(self, queue: str) -> Asking[bool]:
        """Take new jobs again after `close_queue`; return whether it was closed."""
        return self._closed(queue, closed=False)

    aopen_queue = awaited(open_queue)

    def drain(self, queue: str) -> bool:
        """Do what `close_queue` does; this older name goes with the next release."""
        _warn_of_older_name("drain", "close_queue")
        return self.close_queue(queue)

    async def adrain(self, queue: str) -> bool:
        """As `drain`, without blocking the event loop."""
        _warn_of_older_name("adrain", "aclose_queue")
        return await self.aclose_queue(queue)

    def open(self, queue: str) -> bool:
        """Do what `open_queue` does; this older name goes with the next release."""
        _warn_of_older_name("open", "open_queue")
        return self.open_queue(queue)

    async def aopen(self, queue: str) -> bool:
        """As `open`, without blocking the event loop."""
        _warn_of_older_name("aopen", "aopen_queue")
        return await self.aopen_queue(queue)

    @overload
    def set_limits(self, queue: str, limits: None, /) -> bool: ...
    @overload
    def set_limits(self, queue: str, /, **options: Unpack[LimitOptions]) -> bool: ...
    def set_limits(self, queue: str, /, *ending: None, **options: Any) -> bool:
        """Set limits of a queue for all workers, at once; return whether that changed anything.

        They beat what is declared anywhere, until `set_limits(queue, None)` ends that. What is not
        named stays as it is now; an option that is None takes its limit away.
        """
        return self._connection.drive(self._overridden(queue, ending, options))

    @overload
    async def aset_limits(self, queue: str, limits: None, /) -> bool: ...
    @overload
    async def aset_limits(self, queue: str, /, **options: Unpack[LimitOptions]) -> bool: ...
    async def aset_limits(self, queue: str, /, *ending: None, **options: Any) -> bool:
        """As `set_limits`, without blocking the event loop."""
        return await self._connection.adrive(self._overridden(queue, ending, options))

    def _paused(self, queue: str, part: PartOptions, *, paused: bool) -> Asking[bool]:
        where = f"{'pause' if paused else 'resume'}({queue!r})"
        chosen_options(part, PartOptions, where)
        warn_of_mistyped_queue(self._connection, queue)
        meant = {name: stored_text(value, f"{where}: {name}") for name, value in part.items()}
        changed: bool = yield self._connection.store.queues.pause(queue, paused=paused, **meant)
        return changed

    def _closed(self, queue: str, *, closed: bool) -> Asking[bool]:
        warn_of_mistyped_queue(self._connection, queue)
        changed: bool = yield self._connection.store.queues.close_queue(queue, closed=closed)
        return changed

    def _overridden(
        self, queue: str, ending: tuple[object, ...], options: dict[str, Any]
    ) -> Asking[bool]:
        warn_of_mistyped_queue(self._connection, queue)
        queues, settings = self._connection.store.queues, None
        if not _ends(queue, ending, options):
            settings = self._changed(queue, (yield queues.queues()), options)
        changed: bool = yield queues.override(queue, settings)
        return changed

    def _changed(
        self, queue: str, states: tuple[QueueState, ...], options: dict[str, Any]
    ) -> QueueSettings:
        """Change the settings that hold, or those this app declares if the store has none."""
        name = queue if queue == THE_STORE else queue_text(queue, "the name of a queue")
        known = {state.settings.name: state for state in states}.get(name)
        if known is not None and (known.declared or known.overridden):
            return changed_settings(known.settings, options)
        before = self._connection.queues.get(name) or QueueSettings(name)
        return changed_settings(before, options)


def _warn_of_older_name(older: str, newer: str) -> None:
    warnings.warn(
        f"{older}() is called {newer}(), and goes under its older name with the next release",
        DeprecationWarning,
        stacklevel=3,
    )


def _ends(queue: str, ending: tuple[object, ...], options: dict[str, Any]) -> bool:
    """Whether to end the limits that were set."""
    if ending and (ending != (None,) or options):
        raise ConfigError(
            f"queue {queue!r}: give limits by name, such as concurrency=5, or None alone to end "
            "what was set"
        )
    return bool(ending)
