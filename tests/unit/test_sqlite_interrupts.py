# SPDX-License-Identifier: MIT
"""What a signal handler does in the midst of a submit: it raises, or it submits as well."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from packhorse.errors import PayloadError, QueueClosed
from packhorse.stores.plan import Plan
from packhorse.stores.sqlite.runner import PlanRunner
from packhorse.stores.sqlite.store import SqliteStore
from packhorse.testing.conformance.samples import new_job
from tests.unit.sqlite_support import names_in, sqlite_store, submitting


class Interrupted(BaseException):
    """What a signal handler raises, as Ctrl-C does."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(sqlite_store(tmp_path, "?busy_timeout=200ms")) as store:
        store.run(submitting(store, "first"))
        yield store


def usual(store: SqliteStore, name: str, **fields: Any) -> Plan[Any]:
    return store.jobs.submit((new_job(name, trace_id=name, **fields),), ids_are_new=True)


def several(store: SqliteStore, name: str) -> Plan[Any]:
    """More than one statement, and so a transaction."""
    return submitting(store, name, f"{name} too")


class InterruptedTurn:
    """A lock after whose getting a signal handler raises, once."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._raises = True

    def acquire(self, *args: Any, **kwargs: Any) -> bool:
        got = self._lock.acquire(*args, **kwargs)
        if self._raises:
            self._raises = False
            raise Interrupted
        return got

    def release(self) -> None:
        self._lock.release()


@pytest.mark.parametrize("submit", [submitting, usual, several])
def test_an_interrupt_that_comes_with_the_turn_does_not_keep_it(
    store: SqliteStore, tmp_path: Path, submit: Callable[..., Plan[Any]]
) -> None:
    runner = store._local.own.runner
    runner._parts = _with_turn(runner, InterruptedTurn())

    with pytest.raises(Interrupted):
        store.run(submit(store, "interrupted"))
    # Another thread, since the one that holds a turn may take it again.
    helper = threading.Thread(target=lambda: runner.run(submit(store, "after")))
    helper.start()
    helper.join()
    store.run(submitting(store, "last"))

    assert names_in(tmp_path) - {"after too"} == {"first", "after", "last"}


def _with_turn(runner: PlanRunner, turn: Any) -> Any:
    parts = runner._parts
    return type(parts)(parts.settings, parts.clock, parts.send, parts.send_new, parts.connect, turn)


class BusyCursor:
    """A cursor after whose statement a signal handler does something, once."""

    def __init__(self, real: sqlite3.Cursor, handle: Callable[[], object]) -> None:
        self._real = real
        self._handle: Callable[[], object] | None = handle
        self.connection = real.connection

    def execute(self, text: str, parameters: Any) -> None:
        self._real.execute(text, parameters)
        handle, self._handle = self._handle, None
        if handle is not None:
            handle()

    @property
    def rowcount(self) -> int:
        return self._real.rowcount

    @property
    def lastrowid(self) -> int | None:
        return self._real.lastrowid


def test_a_submit_inside_another_is_stored_and_changes_nothing_of_it(
    store: SqliteStore, tmp_path: Path
) -> None:
    runner: Any = store._local.own.runner
    store.run(store.queues.close_queue("shut", closed=True))
    runner._cursor = BusyCursor(runner._cursor, lambda: store.run(usual(store, "inside")))

    with pytest.raises(QueueClosed):
        store.run(usual(store, "refused", queue="shut"))
    store.run(submitting(store, "last"))

    assert names_in(tmp_path) == {"first", "inside", "last"}


def test_an_interrupt_after_the_statement_leaves_a_cursor_for_the_next(
    store: SqliteStore, tmp_path: Path
) -> None:
    def interrupt() -> None:
        raise Interrupted

    runner: Any = store._local.own.runner
    runner._cursor = BusyCursor(runner._cursor, interrupt)

    with pytest.raises(Interrupted):
        store.run(usual(store, "stored all the same"))
    store.run(usual(store, "after"))
    store.run(submitting(store, "last"))

    assert names_in(tmp_path) == {"first", "stored all the same", "after", "last"}


def test_a_payload_that_is_no_text_is_named(store: SqliteStore) -> None:
    broken = msgspec.structs.replace(new_job("broken", trace_id="broken"), payload=b"\xff")

    with pytest.raises(PayloadError, match="job broken is not UTF-8"):
        store.run(store.jobs.submit((broken,), ids_are_new=True))
