# SPDX-License-Identifier: MIT
"""Workers of releases that would end members unseen, or jobs uncounted, are kept out."""

from __future__ import annotations

import msgspec
import pytest

from packhorse.errors import SchemaOutOfDate
from packhorse.stores.redis import store as redis_store
from packhorse.stores.redis.store import RedisStore
from packhorse.stores.requests import QueueSettings
from packhorse.testing.conformance.journaling import BATCH, member
from packhorse.testing.conformance.samples import ANNA, new_job
from tests.stores.redis.support import asking, names_in, renewing


def _become_old(store: RedisStore, namespace: str, worker: str) -> None:
    """Leave of a worker what a release without groups writes."""
    workers = f"{{{namespace}}}:workers"
    row = msgspec.msgpack.decode(store.run(asking("HGET", workers, worker)))
    store.run(asking("HSET", workers, worker, msgspec.msgpack.encode(row[:6])))


def test_no_member_is_stored_while_an_older_worker_lives(store: RedisStore, namespace: str) -> None:
    store.run(store.leases.renew(renewing(ANNA)))
    _become_old(store, namespace, ANNA)

    with pytest.raises(SchemaOutOfDate, match="worker anna is of a release that knows no groups"):
        store.run(store.jobs.submit([new_job("plain"), member("a")]))
    with pytest.raises(SchemaOutOfDate, match="worker anna is of a release that knows no groups"):
        store.run(store.journal.fold(BATCH, (), jobs=[member("a"), new_job("plain")]))

    assert names_in(store) == []
    assert store.migrate() == 1


def test_once_the_older_worker_has_gone_members_are_stored(
    store: RedisStore, namespace: str
) -> None:
    store.run(store.leases.renew(renewing(ANNA)))
    _become_old(store, namespace, ANNA)
    store.run(store.leases.leave(ANNA))
    store.run(store.leases.renew(renewing("of this release")))

    store.run(store.jobs.submit([member("a")]))

    assert names_in(store) == ["a"]


def test_a_process_of_an_older_release_is_refused_once_there_are_members(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.run(store.jobs.submit([new_job("plain")]))
    assert store.migrate() == 1
    store.run(store.jobs.submit([member("a")]))
    assert store.migrate() == 2

    monkeypatch.setattr(redis_store, "SCHEMA", 1)
    older = RedisStore(store._settings)
    try:
        with pytest.raises(SchemaOutOfDate, match="upgrade packhorse"):
            older.run(older.jobs.cancel("a"))
    finally:
        older.close()


def test_no_bound_by_bytes_is_kept_while_an_older_worker_lives_nor_such_a_worker_after_it(
    store: RedisStore, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded = QueueSettings("default", max_bytes=1)
    store.run(store.leases.renew(renewing(ANNA)))
    _become_old(store, namespace, ANNA)

    told = "worker anna is of a release that knows no bounds"
    with pytest.raises(SchemaOutOfDate, match=told):
        store.run(store.queues.declare([bounded]))
    with pytest.raises(SchemaOutOfDate, match=told):
        store.run(store.queues.override("default", bounded))
    assert (store.run(store.queues.queues()), store.migrate()) == ((), 1)
    store.run(store.leases.leave(ANNA))
    store.run(store.queues.declare([bounded]))

    assert store.migrate() == 3
    monkeypatch.setattr(redis_store, "SCHEMA", 2)
    older = RedisStore(store._settings)
    with pytest.raises(SchemaOutOfDate, match="upgrade packhorse"):
        older.run(older.queues.depth("default"))
    older.close()
