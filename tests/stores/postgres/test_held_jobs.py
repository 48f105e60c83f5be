# SPDX-License-Identifier: MIT
"""The looks at held jobs that workers repeat: complete, and narrow under an old snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import psycopg
import pytest
from msgspec.structs import replace

from packhorse.core.clock import SECOND_US
from packhorse.core.lifecycle import HOLD_GRACE_US, CancelAnswer
from packhorse.core.settlement import SettlementKind
from packhorse.stores.postgres.leases import EVERY_JOB_REST, EVERY_JOB_US, SETTLED_US
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.stores.postgres.store import PostgresStore
from packhorse.testing.conformance.samples import ANNA, LEASE_US, TIMEOUT_US, new_job, settlement_of
from packhorse.testing.virtual_clock import VirtualClock
from tests.stores.postgres.support import (
    ask,
    claiming,
    entries_read,
    postgres_store,
    renewing,
    submitting,
    until,
)

_JOBS: Final = 100
_LOOKS: Final = 10
_LIMIT: Final = 50


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def store(url: str, clock: VirtualClock) -> Iterator[PostgresStore]:
    opened = postgres_store(url, clock)
    opened.run(opened.leases.renew(renewing()))
    yield opened
    opened.close()


def take(store: PostgresStore, name: str) -> None:
    store.run(submitting(store, name))
    (job,) = store.run(store.jobs.claim(claiming(limit=1))).jobs
    assert job.id == name


def orphans(store: PostgresStore, *workers: str) -> list[str]:
    return [one.job_id for one in store.run(store.leases.orphans(workers, limit=_LIMIT))]


def expired(store: PostgresStore) -> list[str]:
    return [lease.worker for lease in store.run(store.leases.expired()).leases]


def test_a_job_held_too_long_is_found_by_every_look_until_it_is_taken_back(
    store: PostgresStore, clock: VirtualClock
) -> None:
    take(store, "long")
    assert orphans(store) == []
    clock.advance((3 * TIMEOUT_US) / SECOND_US)
    store.run(store.leases.renew(renewing()))
    assert orphans(store) == ["long"]
    clock.advance((2 * SETTLED_US) / SECOND_US)
    store.run(store.leases.renew(renewing()))

    assert orphans(store) == ["long"]


def test_a_job_claimed_after_the_clock_was_set_back_is_found_when_it_is_held_too_long(
    store: PostgresStore, clock: VirtualClock
) -> None:
    clock.advance((100 * TIMEOUT_US) / SECOND_US)
    assert orphans(store) == []
    clock.step(-90 * TIMEOUT_US / SECOND_US)
    store.run(store.leases.renew(renewing()))
    take(store, "early")
    assert orphans(store) == []
    clock.advance((3 * TIMEOUT_US) / SECOND_US)
    store.run(store.leases.renew(renewing()))

    assert orphans(store) == ["early"]


def test_a_lease_that_ran_out_is_told_again_while_it_holds_jobs(
    store: PostgresStore, clock: VirtualClock
) -> None:
    expired(store)  # the first looks at all held jobs
    take(store, "job")
    clock.advance((2 * LEASE_US) / SECOND_US)
    assert expired(store) == [ANNA]
    clock.advance((SETTLED_US // 2) / SECOND_US)

    assert expired(store) == [ANNA]
    assert orphans(store, ANNA) == ["job"]


def test_a_worker_that_was_away_without_jobs_is_asked_for_again_when_it_has_been_back(
    store: PostgresStore, clock: VirtualClock
) -> None:
    clock.advance((LEASE_US + SETTLED_US) / SECOND_US)
    for _ in range(3):
        assert expired(store) == []
    store.run(store.leases.renew(renewing()))
    take(store, "job")
    clock.advance((LEASE_US) / SECOND_US)

    assert expired(store) == [ANNA]


def test_a_job_of_a_worker_that_the_store_forgot_is_found_within_a_minute(
    url: str, store: PostgresStore, clock: VirtualClock
) -> None:
    expired(store)
    take(store, "job")
    ask(url, f'delete from "{store._settings.schema}".workers')
    clock.advance((EVERY_JOB_US) / SECOND_US)

    (lease,) = store.run(store.leases.expired()).leases

    assert (lease.worker, lease.expires_us) == (ANNA, 0)


def test_a_cancel_that_had_to_wait_for_a_claim_flags_the_job_that_runs(
    url: str, store: PostgresStore, clock: VirtualClock
) -> None:
    store.run(submitting(store, "job"))
    hold_us = clock.now_us() + TIMEOUT_US
    with (
        psycopg.connect(PostgresSettings.from_url(url).conninfo) as claim,
        ThreadPoolExecutor(1) as pool,
    ):
        claim.execute(
            f'update "{store._settings.schema}".jobs set status = 2, lane = 4, worker = %s, '
            "fence = fence + 1, hold_us = %s where id = 'job'".encode(),
            (ANNA, hold_us),
        )
        answer = pool.submit(store.run, store.jobs.cancel("job"))
        until(lambda: ask(url, "select 1 from pg_stat_activity where wait_event_type = 'Lock'"))
        claim.commit()

        assert answer.result() is CancelAnswer.FLAGGED


@pytest.mark.parametrize("verb", ["expired", "orphans", "cancelled"])
def test_looks_under_an_old_snapshot_read_no_more_the_more_jobs_have_ended(
    url: str, store: PostgresStore, clock: VirtualClock, verb: str
) -> None:
    def work() -> None:
        _work(store)
        if verb == "orphans":  # the limits of what has ended are passed
            clock.advance((SETTLED_US + 3 * TIMEOUT_US) / SECOND_US)
            store.run(store.leases.renew(renewing()))

    def look() -> None:
        for _ in range(_LOOKS):
            assert not expired(store) if verb == "expired" else True
            assert not orphans(store) if verb == "orphans" else True
            assert not store.run(store.leases.cancelled(ANNA)) if verb == "cancelled" else True

    with psycopg.connect(PostgresSettings.from_url(url).conninfo) as old:
        old.execute("set transaction isolation level repeatable read")
        old.execute("select count(*) from pg_class")
        work()
        look()
        first = _read_by(url, store, look)
        for _ in range(5):
            work()
            look()

        last = _read_by(url, store, look)

    assert last <= first + _LOOKS


def test_looks_for_jobs_held_too_long_pass_by_a_limit_once(
    url: str, store: PostgresStore, clock: VirtualClock
) -> None:
    with psycopg.connect(PostgresSettings.from_url(url).conninfo) as old:
        old.execute("set transaction isolation level repeatable read")
        old.execute("select count(*) from pg_class")
        _work(store)
        orphans(store)
        clock.advance((TIMEOUT_US + HOLD_GRACE_US) / SECOND_US + 1)
        store.run(store.leases.renew(renewing()))
        orphans(store)  # the limits of what has ended are passed, a moment ago
        clock.advance(1)

        assert _read_by(url, store, lambda: orphans(store)) < _JOBS


def test_a_job_of_a_claim_that_committed_after_its_limit_is_found_within_a_minute(
    url: str, store: PostgresStore, clock: VirtualClock
) -> None:
    name = f'"{store._settings.schema}".jobs'
    orphans(store)
    take(store, "late")
    ask(url, f"update {name} set hold_us = null where id = 'late'")  # no look has met it yet
    clock.advance(SETTLED_US / 2 / SECOND_US)
    store.run(store.leases.renew(renewing()))
    orphans(store)
    ask(url, f"update {name} set hold_us = %s where id = 'late'", clock.now_us() - SECOND_US)
    assert orphans(store) == []
    clock.advance(SETTLED_US / 2 / SECOND_US)
    store.run(store.leases.renew(renewing()))

    assert orphans(store) == ["late"]


def test_a_worker_that_is_sure_has_no_other_jobs_looked_at_than_those_seen_last(
    url: str, store: PostgresStore
) -> None:
    sure = replace(renewing(), held=(), unsure=False)
    expired(store)
    with psycopg.connect(PostgresSettings.from_url(url).conninfo) as old:
        old.execute("set transaction isolation level repeatable read")
        old.execute("select count(*) from pg_class")
        _work(store)

        read = _read_by(url, store, lambda: store.run(store.leases.renew(sure)))

    assert read < _JOBS


def test_a_job_that_its_worker_does_not_know_is_released_after_the_next_look_at_all(
    store: PostgresStore, clock: VirtualClock
) -> None:
    known = replace(renewing(), held=(("known", 1),), unsure=False)
    expired(store)
    take(store, "known")
    take(store, "lost")
    assert store.run(store.leases.renew(known)).released == 0
    clock.advance(EVERY_JOB_US / SECOND_US - 1)
    store.run(store.leases.renew(known))
    clock.advance(1)
    expired(store)

    assert store.run(store.leases.renew(known)).released == 1
    assert [job.id for job in store.run(store.jobs.claim(claiming())).jobs] == ["lost"]


def test_all_held_jobs_are_looked_at_where_nothing_else_does(store: PostgresStore) -> None:
    take(store, "lost")

    assert store.run(store.leases.renew(replace(renewing(), held=(), unsure=False))).released == 1


def test_a_look_at_all_held_jobs_rests_in_proportion_to_what_it_takes(
    url: str, store: PostgresStore, clock: VirtualClock
) -> None:
    ticks = iter(range(0, 1000, 2))  # each look takes two seconds
    store.leases._time = lambda: float(next(ticks))
    expired(store)
    take(store, "job")
    ask(url, f'delete from "{store._settings.schema}".workers')
    clock.advance(2 * EVERY_JOB_REST - 1)
    assert expired(store) == []
    clock.advance(1)

    assert expired(store) == [ANNA]


def _work(store: PostgresStore) -> None:
    store.run(store.jobs.submit([new_job() for _ in range(_JOBS)]))
    jobs = store.run(store.jobs.claim(claiming(limit=_JOBS))).jobs
    store.run(store.jobs.settle([settlement_of(SettlementKind.COMPLETED, job) for job in jobs]))


def _read_by(url: str, store: PostgresStore, look: Callable[[], object]) -> int:
    """How many index entries of jobs some looks read."""
    before = entries_read(url, store)
    look()
    return entries_read(url, store) - before
