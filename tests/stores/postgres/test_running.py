# SPDX-License-Identifier: MIT
"""Plans on real connections: their steps, what is tried again, and what is not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from packhorse import StoreError, StoreUnavailable
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.postgres.rendering import Texts
from packhorse.stores.postgres.statements import Again, Lock, Once
from packhorse.stores.postgres.store import PostgresStore
from packhorse.stores.sql.statements import NOW, Change, Rows, Send, SendMany, Together
from packhorse.testing.virtual_clock import VirtualClock
from tests.stores.postgres.support import (
    PATIENCE_S,
    ask,
    connections_to,
    end_sessions,
    names_in,
    postgres_store,
    sessions,
    submitting,
    until,
)
from tests.support.children import in_threads

# Python 3.12 and later warn of every fork beside threads, and some of these are about that.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

Run = Callable[[PostgresStore, Plan[Any]], Any]


@pytest.fixture
def books(store: PostgresStore, url: str) -> Iterator[str]:
    """A table with two rows, beside those of the store."""
    schema = store._settings.schema
    ask(url, f'create table "{schema}".books (id bigint primary key, sold bigint default 0)')
    ask(url, f'insert into "{schema}".books values (1), (2)')
    yield schema
    ask(url, f'drop table "{schema}".books')


def sold(url: str, schema: str) -> list[int]:
    return [count for (count,) in ask(url, f'select sold from "{schema}".books order by id')]


# ------------------------------------------------------------------------------------------ steps


def test_every_step_is_answered(store: PostgresStore, books: str, run: Run) -> None:
    def steps() -> Steps[dict[str, Any]]:
        yield Lock("one", "two", shared=True)
        yield Lock("three")
        yield Send("insert into {books} values (%s)", (3,))
        now_us = yield NOW
        answers: dict[str, Any] = {"same now": now_us == (yield NOW) > 0}
        answers["rows"] = yield Rows("select id from {books} order by id")
        answers["change"] = yield Change("update {books} set sold = %(n)s where id < 3", {"n": 5})
        answers["many"] = yield SendMany("delete from {books} where id = %s", [(1,), (3,), (9,)])
        answers["together"] = yield Together(
            [Rows("select count(*) from {books}"), Rows("update {books} set sold = 6 returning id")]
        )
        return answers

    assert run(store, Plan("try", steps)) == {
        "same now": True,
        "rows": [(1,), (2,), (3,)],
        "change": 2,
        "many": None,
        "together": [[(1,)], [(2,)]],
    }


def test_values_arrive_and_come_back_as_they_are(store: PostgresStore, run: Run) -> None:
    values = (2**62, -1, "Zoë %s", True, 1.5, b"\0\xff", None)
    arrays: Any = ([1, None, -3], ["a", None, 'b"\\,{}'], [True, False], [], [None])
    text = (
        "select %s, %s, %s, %s, %s, %s, %s::bigint, %s, %s::text[], %s, %s::bigint[], %s::text[],"
        " '%%', '{}'"
    )

    def steps() -> Steps[list[tuple[Any, ...]]]:
        rows: list[tuple[Any, ...]] = yield Once(text, (*values, *arrays))
        return rows

    for _ in range(2):  # the second time by statements that are prepared
        [row] = run(store, Plan("try", steps, writes=False))
        assert row == (*values, *arrays, "%", "{}")


def test_none_and_a_number_are_the_same_statement(store: PostgresStore) -> None:
    def asking(value: int | None) -> Plan[Any]:
        def steps() -> Steps[list[tuple[Any, ...]]]:
            rows: list[tuple[Any, ...]] = yield Once("select %(value)s::bigint", {"value": value})
            return rows

        return Plan("try", steps, writes=False)

    for value in (7, None, 8):
        assert store.run(asking(value)) == [(value,)]
    rows = ask(store.label, "select 1")  # the label has no password here, so it is a URL
    assert rows == [(1,)]
    statement = store._texts.statement("select %(value)s::bigint")
    assert statement.types == (20,)
    assert statement.typed((0,)) == (20,)


@pytest.mark.parametrize(
    "wrong",
    [
        [Rows("select 1"), Once("select 1")],
        [Once("select 1"), Rows("select 1")],
        [Lock("key"), Once("select 1")],
        [object()],
    ],
)
def test_steps_that_do_not_go_together_are_refused(
    store: PostgresStore, wrong: list[Any], run: Run
) -> None:
    def steps() -> Steps[None]:
        for step in wrong:  # noqa: UP028 - a list cannot be sent answers
            yield step

    with pytest.raises(TypeError):
        run(store, Plan("try", steps))
    run(store, submitting(store, "job"))  # all is in order


def test_a_percent_sign_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="write %%"):
        Texts("packhorse", "").statement("select 'a' like 'a%'")
    with pytest.raises(ValueError, match="named and unnamed"):
        Texts("packhorse", "").statement("select %s, %(name)s")


def test_a_given_clock_stands_in_statements(url: str, run: Run) -> None:
    clock = VirtualClock()
    store = postgres_store(url, clock)

    def steps() -> Steps[tuple[int, int]]:
        now_us = yield NOW
        [(told_us,)] = yield Rows("select {now}")
        return now_us, told_us

    assert run(store, Plan("try", steps)) == (clock.now_us(),) * 2
    clock.advance(5)
    assert run(store, Plan("try", steps)) == (clock.now_us(),) * 2
    store.close()


# ---------------------------------------------------------------------------------- transactions


def test_a_plan_that_fails_leaves_nothing(
    store: PostgresStore, url: str, books: str, run: Run
) -> None:
    def refused() -> Steps[None]:
        yield Change("update {books} set sold = 1")
        raise StoreError("no")

    def failed() -> Steps[None]:
        yield Change("update {books} set sold = 1")
        yield Send("select 1 / 0")  # found out with the commit

    with pytest.raises(StoreError, match="no"):
        run(store, Plan("try", refused))
    with pytest.raises(StoreError, match="division by zero"):
        run(store, Plan("try", failed))
    assert sold(url, books) == [0, 0]


def test_a_reading_plan_sees_one_instant_and_cannot_write(
    store: PostgresStore, url: str, books: str, run: Run
) -> None:
    def looking() -> Steps[list[int]]:
        [(before,)] = yield Rows("select sum(sold)::bigint from {books}")
        ask(url, f'update "{books}".books set sold = sold + 1')
        [(after,)] = yield Rows("select sum(sold)::bigint from {books}")
        return [before, after]

    def writing() -> Steps[None]:
        yield Change("update {books} set sold = 9")

    assert run(store, Plan("try", looking, writes=False)) == [0, 0]
    with pytest.raises(StoreUnavailable, match="read-only transaction"):
        run(store, Plan("try", writing, writes=False))
    assert sold(url, books) == [1, 1]


def test_locks_keep_plans_apart(store: PostgresStore, url: str, books: str) -> None:
    """A read, then a write of one more: only one after the other gives the sum."""

    def steps() -> Steps[None]:
        yield Lock("books")
        [(count,)] = yield Rows("select sold from {books} where id = 1")
        yield Send("update {books} set sold = %s where id = 1", (count + 1,))

    in_threads(*[lambda: [store.run(Plan("try", steps)) for _ in range(5)]] * 6)

    assert sold(url, books) == [30, 0]


def test_locks_of_other_schemas_are_other_locks(store: PostgresStore) -> None:
    from tests.servers.schemas import schemas

    name = schemas().take()
    other = postgres_store(schemas().url_of(name))

    def outer() -> Steps[str]:
        yield Lock("key")
        yield Rows("select 1")
        return other.run(Plan("inner", inner))

    def inner() -> Steps[str]:
        yield Lock("key")
        yield Rows("select 1")
        return "both"

    assert store.run(Plan("try", outer)) == "both"
    other.close()
    schemas().give(name)


# ---------------------------------------------------------------------------------- tried again


def test_a_deadlock_is_met_by_trying_again(store: PostgresStore, url: str, books: str) -> None:
    meeting, tries = threading.Barrier(2), [0, 0]

    def steps(number: int) -> Steps[None]:
        first, second = (1, 2) if number == 0 else (2, 1)
        tries[number] += 1
        yield Change("update {books} set sold = sold + 1 where id = %s", (first,))
        if tries[number] == 1:
            meeting.wait(PATIENCE_S)
        yield Change("update {books} set sold = sold + 1 where id = %s", (second,))

    in_threads(*[lambda n=n: store.run(Plan("try", partial(steps, n))) for n in range(2)])

    assert sold(url, books) == [2, 2]
    assert sum(tries) >= 3  # the one that gave way may meet the other once more


def test_a_serialization_failure_is_met_by_trying_again(
    store: PostgresStore, url: str, books: str, run: Run
) -> None:
    tries = 0

    def steps() -> Steps[None]:
        nonlocal tries
        tries += 1
        yield Send("set transaction isolation level serializable")
        [(count,)] = yield Rows("select sold from {books} where id = 1")
        if tries == 1:
            ask(url, f'update "{books}".books set sold = 10 where id = 1')
        yield Change("update {books} set sold = %s where id = 1", (count + 1,))

    run(store, Plan("try", steps))

    assert tries == 2
    assert sold(url, books) == [11, 0]


def test_a_plan_may_ask_to_be_run_again_but_not_for_ever(store: PostgresStore, run: Run) -> None:
    tries = 0

    def steps() -> Steps[int]:
        nonlocal tries
        tries += 1
        yield Rows("select 1")
        if tries < 3:
            raise Again("lost a race")
        return tries

    def never() -> Steps[None]:
        yield Rows("select 1")
        raise Again("lost a race")

    assert run(store, Plan("try", steps)) == 3
    with pytest.raises(StoreUnavailable, match="others were in the way each time"):
        run(store, Plan("try", never))


def test_connections_that_died_while_idle_are_replaced_unseen(
    store: PostgresStore, url: str
) -> None:
    async def scenario() -> None:
        await store.arun(submitting(store, "async, before"))
        before = {pid for (pid,) in sessions(url)}
        assert end_sessions(url) >= 2
        # A session is off the list before its process has hung up.
        until(lambda: not any(one.usable for one in connections_to(before)))
        await store.arun(submitting(store, "async, after"))

    store.run(submitting(store, "before"))
    asyncio.run(scenario())
    store.run(submitting(store, "after"))

    assert names_in(url) == ["before", "async, before", "async, after", "after"]


@pytest.mark.parametrize("losses", [1, 2])
def test_a_session_ended_in_the_middle_of_a_plan_is_begun_again(
    store: PostgresStore, url: str, books: str, run: Run, losses: int
) -> None:
    tries = 0

    def steps() -> Steps[None]:
        nonlocal tries
        tries += 1
        yield Change("update {books} set sold = sold + 1")
        if tries <= losses:
            end_sessions(url)
        yield Rows("select 1")

    run(store, Plan("try", steps))

    assert tries == losses + 1
    assert sold(url, books) == [1, 1]


def test_a_plan_that_loses_every_session_is_given_up(
    store: PostgresStore, url: str, books: str, run: Run
) -> None:
    def steps() -> Steps[None]:
        yield Change("update {books} set sold = sold + 1")
        end_sessions(url)
        yield Rows("select 1")

    with pytest.raises(StoreUnavailable) as raised:
        run(store, Plan("try", steps))

    assert not raised.value.maybe_stored
    assert sold(url, books) == [0, 0]
