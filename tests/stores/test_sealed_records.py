# SPDX-License-Identifier: MIT
"""What records hold of users' values is encrypted: searched for in the bytes of each store."""

from __future__ import annotations

import asyncio
import base64
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
import redis

from packhorse import Encryption, Packhorse
from packhorse.client.encryption import new_key
from packhorse.client.rotation import rotate
from packhorse.client.sealed_store import SealedStore, plain_store
from packhorse.core.clock import SystemChance, SystemClock
from packhorse.core.schedules import SCHEDULE_KIND
from packhorse.events import EventBus
from packhorse.runtime.services.declarer import Declarer
from packhorse.runtime.services.service import ServiceContext
from packhorse.stores.memory import MemoryStore
from tests.servers.redis import redis_url

MARKER: Final = "4111-marked-1111"
K1: Final = {"k1": new_key()}
BOTH: Final = {"k2": new_key(), **K1}


class Place:
    """One store, the apps on it, and all that it holds as bytes."""

    def __init__(self, kind: str, url: str) -> None:
        self._kind, self._url = kind, url
        self._memory = MemoryStore()
        self.made: list[Packhorse] = []
        self.told: list[str] = []

    def app(self, keys: dict[str, str] | None) -> Packhorse:
        """An app with tasks, a schedule whose call has the marker, and these keys."""
        where: Any = {"store": self._memory} if self._kind == "memory" else {"url": self._url}
        app = Packhorse(**where, encryption=None if keys is None else Encryption(keys))
        self.made.append(app)

        @app.task
        def note(text: str) -> str:
            self.told.append(text)
            return text

        app.schedule("often", note.call(f"schedule {MARKER}"), every="1h")
        return app

    def held(self) -> bytes:
        """Everything in the store."""
        return with_base64(b"\n".join(_bytes(value) for value in self._values()))

    def _values(self) -> Iterator[Any]:
        match self._kind:
            case "memory":
                yield from _in_memory(self._memory)
            case "sqlite":
                with closing(sqlite3.connect(self._url.removeprefix("sqlite:///"))) as own:
                    tables = own.execute("select name from sqlite_master where type = 'table'")
                    for (name,) in tables.fetchall():
                        for row in own.execute(f"select * from {name}"):
                            yield from row
            case "postgres":
                yield from _in_tables(self._url)
            case _:
                yield from _in_keys(parse_qs(urlsplit(self._url).query)["namespace"][0])


def _in_memory(store: MemoryStore) -> Iterator[Any]:
    page = store.run(store.records.records(None, limit=1_000))
    yield from (record.document for record in page.records)
    yield from (
        repr(each) for each in store.run(store.transfer.carry_out(after=None, limit=99)).jobs
    )


def _in_tables(url: str) -> Iterator[Any]:
    with psycopg.connect(url.partition("?")[0]) as own:
        tables = own.execute(
            "select format('%%I.%%I', schemaname, tablename) from pg_tables where schemaname = %s",
            (parse_qs(urlsplit(url).query)["schema"][0],),
        )
        for (name,) in tables.fetchall():
            for row in own.execute(f"select * from {name}".encode()):
                yield from row


def _in_keys(namespace: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url()) as own:
        for key in own.scan_iter(f"{{{namespace}}}*", count=1000):
            match own.type(key):
                case b"hash":
                    yield from own.hgetall(key).values()
                case b"string":
                    yield own.get(key)


def _bytes(value: Any) -> bytes:
    return bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode()


def with_base64(raw: bytes) -> bytes:
    """Some bytes, and what stands among them in base64 as it was before."""
    words = [word for word in raw.replace(b'"', b" ").split() if len(word) % 4 == 0]
    return raw + b"\n".join(filter(None, map(_decoded, words)))


def _decoded(word: bytes) -> bytes:
    try:
        return base64.b64decode(word, validate=True)
    except ValueError:
        return b""


@pytest.fixture
def place(store_kind: str, store_url: str) -> Iterator[Place]:
    found = Place(store_kind, store_url)
    yield found
    for app in found.made:
        app.close()


def declare(app: Packhorse) -> None:
    """Declare the schedule, as a worker does."""
    store, own = app.store, app._declared_schedules()
    store.migrate()
    context = ServiceContext(store, SystemClock(), SystemChance(), EventBus(), "w")
    asyncio.run(Declarer(context, SCHEDULE_KIND, own, "1").declare())


def filled(app: Packhorse) -> None:
    """Have records hold the marker: of a schedule, callbacks of an open batch, a waiting node."""
    note: Any = app.tasks["note"]
    declare(app)
    later = note.using(queue="later")
    app.batch(
        later,
        [{"text": "plain"}],
        id="letters",
        on_complete=note.call(f"callback {MARKER}"),
    )
    flow = app.workflow("order")
    first = flow.add(later.call("first"))
    flow.add(note.call(f"node {MARKER}"), after=[first])
    flow.start()


def marked(place: Place, app: Packhorse) -> list[str]:
    """Run all that waits; what was called with the marker, and by what."""
    app.run(["default", "later", "batch"], burst=True)
    return sorted(text.removesuffix(f" {MARKER}") for text in place.told if MARKER in text)


def test_what_records_hold_of_arguments_is_sealed(place: Place) -> None:
    app = place.app(K1)
    filled(app)

    waiting = place.held()
    place.app(None).schedules.run("often")  # to fire needs no key

    assert MARKER.encode() not in waiting
    assert marked(place, app) == ["callback", "node", "schedule"]
    assert MARKER.encode() not in place.held()


def test_what_was_plain_is_used_and_a_schedule_is_sealed_when_it_is_declared(place: Place) -> None:
    filled(place.app(None))
    assert MARKER.encode() in place.held()  # it is searched for where it would be
    app = place.app(K1)

    app.schedules.run("often")
    declare(app)

    assert marked(place, app) == ["callback", "node", "schedule"]
    plain = plain_store(app.store)
    [schedule] = plain.run(plain.records.records("schedule", limit=2)).records
    assert MARKER.encode() not in with_base64(schedule.document)


def test_rotation_reaches_what_records_hold_beside_other_changes(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(place.app(K1))
    store, newest = place.app(BOTH).store, place.app({"k2": BOTH["k2"]})
    assert isinstance(store, SealedStore)
    assert isinstance(newest.store, SealedStore)
    change, paused = store.plain.records.change, list[str]()

    def late(changes: Any, **more: Any) -> Any:
        if changes[0].id.kind == "schedule" and not paused:
            paused.append("now")
            newest.schedules.pause("often")
        return change(changes, **more)

    monkeypatch.setattr(store.plain.records, "change", late)
    told = rotate(store, progress=lambda *_: None)
    monkeypatch.undo()

    assert told.unreadable == {}
    assert newest.schedules.get("often").state == "paused"
    for name in ("schedule", "batch", "workflow_node"):
        for record in store.run(store.records.records(name, limit=9)).records:
            assert b"k1:" not in with_base64(record.document), name
    newest.schedules.run("often")
    assert marked(place, newest) == ["callback", "node", "schedule"]
    assert told.records > 3
    assert told.values > 3
    assert rotate(newest.store, progress=lambda *_: None).values == 0
