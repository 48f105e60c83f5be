# SPDX-License-Identifier: MIT
"""The idempotency checker finds what a handler does twice, and lets a right one pass."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from packhorse import Context, Packhorse, Reject
from packhorse.errors import UsageError
from packhorse.task import Task
from packhorse.testing import (
    IdempotencyReport,
    NotIdempotent,
    VirtualClock,
    acheck_idempotent,
    check_idempotent,
)

app = Packhorse("memory://")


class Gateway:
    """An outside system that does once what it is asked for under one key."""

    def __init__(self) -> None:
        self.charged: dict[str, int] = {}
        self.mails: list[str] = []

    def charge(self, cents: int, key: str | None = None) -> str:
        self.charged.setdefault(key or f"charge-{len(self.charged)}", cents)
        return "paid"

    async def acharge(self, cents: int, key: str | None = None) -> str:
        return self.charge(cents, key)

    def mail(self, to: str, *, idempotency_key: str = "") -> None:
        self.mails.append(to)

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]  # the same object, empty again


gateway = Gateway()


def send(to: str) -> None:
    gateway.mails.append(to)


@pytest.fixture(autouse=True)
def _empty() -> None:
    gateway.clear()


@app.task
def pay_rightly(ctx: Context, cents: int) -> str:
    paid = ctx.step("charge", gateway.charge, cents, ctx.idempotency_key("charge"))
    gateway.mail("ada", idempotency_key=f"receipt-{ctx.job.id}")
    return paid


@app.task
async def pay_rightly_async(ctx: Context, cents: int) -> str:
    return await ctx.astep("charge", gateway.acharge, cents, ctx.idempotency_key("charge"))


@app.task
def pay_carelessly(ctx: Context, cents: int) -> None:
    ctx.step("charge", gateway.charge, cents)
    ctx.step("mail", gateway.mail, "ada")


@app.task
async def pay_carelessly_async(ctx: Context, cents: int) -> None:
    await gateway.acharge(cents)


def findings(
    task: Task[..., Any], *args: Any, **options: Any
) -> dict[tuple[str, str], tuple[int, int, str]]:
    with pytest.raises(NotIdempotent) as caught:
        check_idempotent(task, *args, **options)
    found = reversed(caught.value.report.findings)
    return {(one.kind, one.what): (one.times, one.expected, one.where) for one in found}


def test_a_right_handler_passes_and_the_report_says_what_was_tried() -> None:
    report = check_idempotent(
        pay_rightly,
        500,
        effects=[gateway.charge, (gateway, "mail")],
        state=lambda: dict(gateway.charged.items()) and list(gateway.charged.values()),
        reset=gateway.clear,
    )

    assert report.ok
    assert report.findings == ()
    assert report.places == (
        "Gateway.charge in attempt 1",
        "the write of step charge in attempt 1",
        "Gateway.mail in attempt 1",
        "the handler's return in attempt 1",
    )
    assert report.runs == 2 + 2 * len(report.places) + 50
    assert str(report).startswith("task pay_rightly is idempotent as far as seen: 60 runs")


def test_a_coroutine_that_is_right_passes_too() -> None:
    assert check_idempotent(pay_rightly_async, 500, effects=[gateway.acharge]).ok


def test_a_charge_without_a_key_is_found_at_its_exact_place() -> None:
    found = findings(pay_carelessly, 500, effects=[gateway.charge, gateway.mail])

    place = "crash after Gateway.charge in attempt 1"
    assert found["twice", "Gateway.charge"] == (2, 1, place)
    assert found["twice", "Gateway.mail"] == (2, 1, "crash after Gateway.mail in attempt 1")


def test_places_where_nothing_happens_twice_are_not_among_the_findings() -> None:
    with pytest.raises(NotIdempotent) as caught:
        check_idempotent(pay_carelessly, 500, effects=[gateway.charge])

    where = {one.where for one in caught.value.report.findings}
    assert not any(text.startswith("crash after the write") for text in where)
    assert "pause after Gateway.charge in attempt 1" in where


def test_a_coroutine_that_is_wrong_is_found_when_it_is_delivered_again() -> None:
    found = findings(pay_carelessly_async, 500, effects=[gateway.acharge])

    assert found["twice", "Gateway.acharge"][:2] == (2, 1)


def test_the_message_of_the_assertion_is_the_report() -> None:
    with pytest.raises(AssertionError) as caught:
        check_idempotent(pay_carelessly, 500, effects=[gateway.charge], seed=7)

    text = str(caught.value)
    assert text.startswith("task pay_carelessly is not idempotent (")
    assert "seed 7" in text
    assert (
        "  - Gateway.charge happened 2 times instead of 1: crash after Gateway.charge in attempt 1"
        in text.splitlines()
    )


def test_the_same_seed_finds_the_same() -> None:
    def report(seed: int) -> IdempotencyReport:
        with pytest.raises(NotIdempotent) as caught:
            check_idempotent(pay_carelessly, 500, effects=[gateway.charge], seed=seed)
        return caught.value.report

    assert report(3) == report(3)
    assert report(3).findings[0].seed == 3


def test_what_is_marked_as_done_too_early_is_found_as_lost() -> None:
    done: set[str] = set()
    files = Files(done)

    @app.task
    def export(ctx: Context) -> None:
        if "export" not in done:
            files.mark("export")
            gateway.mail("ada")

    found = findings(export, effects=[files.mark, gateway.mail], reset=done.clear)

    assert found["lost", "Gateway.mail"][:2] == (0, 1)


class Files:
    def __init__(self, done: set[str]) -> None:
        self.done = done

    def mark(self, name: str) -> None:
        self.done.add(name)


def test_a_changed_state_is_found_where_no_effect_is_named() -> None:
    books = {"sum": 0}

    @app.task
    def book(ctx: Context, cents: int) -> None:
        books["sum"] += cents
        ctx.step("note", str, cents)

    found = findings(book, 5, state=lambda: books, reset=lambda: books.update(sum=0))

    assert found["state", "state"][2] == "crash after the write of step note in attempt 1"


def test_a_world_that_is_not_set_back_cannot_be_compared() -> None:
    with pytest.raises(UsageError, match="reset="):
        check_idempotent(pay_carelessly, 5, state=lambda: gateway.charged)


def test_another_amount_under_the_same_key_is_found() -> None:
    @app.task
    def pay_more_each_time(ctx: Context) -> None:
        gateway.charge(ctx.job.attempt, ctx.idempotency_key("charge"))

    found = findings(pay_more_each_time, effects=[gateway.charge])

    assert set(found) == {("key_reused", "Gateway.charge")}


def test_a_second_attempt_that_cannot_bear_the_first_is_found() -> None:
    rows: set[int] = set()

    @app.task
    def insert(ctx: Context, row: int) -> None:
        if row in rows:
            raise LookupError(f"row {row} is there")
        rows.add(row)

    found = findings(insert, 1, reset=rows.clear)

    assert set(found) == {("failed", "LookupError: row 1 is there")}


def test_a_paused_attempt_goes_on_beside_its_successor() -> None:
    """The step keeps the mail from a second attempt; a pause before it does not."""

    @app.task
    def mail(ctx: Context) -> None:
        if ctx.job.attempt == 1:
            gateway.charge(1, ctx.idempotency_key("charge"))
            gateway.mail("ada")
        else:
            gateway.charge(1, ctx.idempotency_key("charge"))
            if not gateway.mails:
                gateway.mail("ada")

    found = findings(mail, effects=[gateway.charge, gateway.mail], reset=gateway.clear)

    assert set(found) == {("twice", "Gateway.mail")}
    assert found["twice", "Gateway.mail"][2] == "pause after Gateway.charge in attempt 1"


def test_what_runs_on_in_a_dead_attempt_does_not_happen() -> None:
    @app.task
    def tidy(ctx: Context) -> None:
        try:
            gateway.charge(1, ctx.idempotency_key("charge"))
        finally:
            gateway.mail("ada")

    with pytest.raises(NotIdempotent) as caught:
        check_idempotent(tidy, effects=[gateway.charge, gateway.mail])

    # The mail of the dying attempt is not sent: it is so only after the mail itself.
    where = [one.where for one in caught.value.report.findings]
    assert "crash after Gateway.charge in attempt 1" not in where
    assert "crash after Gateway.mail in attempt 1" in where


def test_a_function_is_watched_where_the_handler_finds_it() -> None:
    @app.task
    def tell(to: str) -> None:
        send(to)

    found = findings(tell, "ada", effects=[send])

    assert [what.rpartition(".")[2] for _, what in found] == ["send"]
    assert send.__name__ == "send"
    assert not hasattr(send, "__wrapped__"), "the function is as before"


def test_a_job_submitted_twice_is_found_unless_it_has_a_key() -> None:
    shop = Packhorse("sqlite:////nowhere/at/all.db")  # never opened

    @shop.task
    def ship(order: int) -> None: ...

    @shop.task
    def order_carelessly(order: int) -> None:
        ship.enqueue(order)

    @shop.task
    async def order_rightly(ctx: Context, order: int) -> None:
        await ship.using(idempotency_key=ctx.idempotency_key("ship")).aenqueue(order)

    assert findings(order_carelessly, 7)["twice", "ship.enqueue"][:2] == (2, 1)
    assert check_idempotent(order_rightly, 7).ok


def test_sleeps_and_signals_are_gone_through() -> None:
    @app.task
    def approve(ctx: Context) -> str:
        ctx.sleep("night", "8h")
        by: str = ctx.wait_for("approved")
        ctx.step("charge", gateway.charge, 5, ctx.idempotency_key("charge"))
        return by

    assert check_idempotent(approve, effects=[gateway.charge], signals={"approved": ["ada"]}).ok
    with pytest.raises(UsageError, match="signals="):
        check_idempotent(approve, effects=[gateway.charge])


def test_an_error_of_a_run_without_harm_is_raised_as_it_is() -> None:
    @app.task
    def refuse() -> None:
        raise Reject("never")

    with pytest.raises(Reject):
        check_idempotent(refuse)


def test_a_handler_of_which_nothing_is_seen_is_not_called_idempotent() -> None:
    with pytest.raises(UsageError, match="effects="):
        check_idempotent(pay_carelessly, 500)


def test_what_cannot_be_watched_is_an_error() -> None:
    for effect, told in ((5, "cannot be watched"), ((VirtualClock, "nothing"), "cannot be")):
        with pytest.raises(UsageError, match=told):
            check_idempotent(pay_rightly, 5, effects=[effect])


async def test_on_a_running_loop_the_twin_is_named_and_works() -> None:
    with pytest.raises(UsageError, match="acheck_idempotent"):
        check_idempotent(pay_rightly, 5)

    async def wiped() -> None:
        gateway.clear()

    reset: Callable[[], Coroutine[Any, Any, None]] = wiped
    report = await acheck_idempotent(
        pay_rightly_async, 5, effects=[(Gateway, "acharge")], reset=reset
    )
    assert report.ok
    assert "__wrapped__" not in dir(Gateway.acharge)
