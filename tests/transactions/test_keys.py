# SPDX-License-Identifier: MIT
"""Keys and refusals are decided at admission: no transaction of a user waits for them or fails."""

from __future__ import annotations

import pytest

from packhorse import JobStatus, Unique
from packhorse.core.job import DeadReason, IdempotencyRule
from packhorse.errors import JobDead, JobNotFound
from packhorse.stores.intake import IntakeRequest
from packhorse.testing.conformance.journaling import BATCH, member
from tests.transactions.support import Orders


def test_a_key_that_is_taken_does_not_abort(orders: Orders) -> None:
    with orders.driver() as first:
        one = orders.send.using(tx=first.tx, idempotency_key="k").enqueue("a")
    with orders.driver() as second:
        other = orders.send.using(tx=second.tx, idempotency_key="k").enqueue("a")
        second.execute(orders.insert("second"))

    assert orders.names() == ["second"]
    assert orders.run() == ["a"]
    assert other.info().id == one.info().id == one.id


def test_the_handle_of_the_loser_is_one_on_the_holder(orders: Orders) -> None:
    holder = orders.send.using(unique=Unique(key="order")).enqueue("a")
    with orders.driver() as open_one:
        loser = orders.send.using(tx=open_one.tx, unique=Unique(key="order")).enqueue("a")

    assert loser.deduplicated is None
    assert loser.status() is JobStatus.QUEUED
    assert loser.deduplicated is True
    assert loser.id != loser.info().id == holder.id
    assert loser.explain().job_id == holder.id
    assert orders.run() == ["a"]
    assert loser.result(timeout=10) == "A"
    assert loser.history() == holder.history()


def test_the_handle_of_the_loser_cancels_the_holder(orders: Orders) -> None:
    holder = orders.send.using(unique=Unique(key="order")).enqueue("a")
    with orders.driver() as open_one:
        loser = orders.send.using(tx=open_one.tx, unique=Unique(key="order")).enqueue("a")

    assert loser.cancel()
    assert holder.status() is JobStatus.CANCELLED


def test_the_cancel_of_a_loser_in_a_transaction_cancels_the_holder(orders: Orders) -> None:
    holder = orders.send.using(unique=Unique(key="order")).enqueue("a")
    with orders.driver() as open_one:
        loser = orders.send.using(tx=open_one.tx, unique=Unique(key="order")).enqueue("a")
        loser.cancel(tx=open_one.tx)

    assert loser.status() is JobStatus.CANCELLED
    assert holder.status() is JobStatus.CANCELLED


def test_a_full_or_closed_queue_refuses_no_transaction(orders: Orders) -> None:
    app = orders.app
    app.queue("small", max_depth=1)
    orders.send.using(queue="small").enqueue("a")
    app.store.run(app.store.queues.close_queue("small", closed=True))
    with orders.driver() as open_one:
        job = orders.send.using(tx=open_one.tx, queue="small").enqueue("b")

    assert job.status() is JobStatus.QUEUED
    assert app.depth("small") == 2


def test_what_is_refused_at_admission_is_a_dead_letter(orders: Orders) -> None:
    first = orders.send.using(idempotency_key="k").enqueue("a")
    with orders.driver() as open_one:
        kept = orders.send.using(tx=open_one.tx).enqueue("kept")
        refused = orders.send.using(tx=open_one.tx, idempotency_key="k").enqueue("other")
        last = orders.send.using(tx=open_one.tx).enqueue("last")

    info = refused.info()
    assert (info.status, info.dead_reason) == (JobStatus.DEAD, DeadReason.REJECTED)
    assert info.error is not None
    assert "idempotency key 'k'" in info.error.message
    with pytest.raises(JobDead, match="rejected"):
        refused.result(timeout=1)
    assert {kept.status(), last.status(), first.status()} == {JobStatus.QUEUED}
    assert orders.run() == ["a", "kept", "last"]


def test_a_member_that_is_refused_at_admission_is_told_in_the_journal(orders: Orders) -> None:
    store = orders.app.store
    assert store.intake is not None
    rules = [IdempotencyRule("k", digest, 10**9) for digest in ("a:1", "a:2")]
    store.run(store.jobs.submit([member("first", idempotency=rules[0])]))
    refused = IntakeRequest(member("refused", idempotency=rules[1]))
    with orders.plain() as connection:
        text, parameters = store.intake.append([refused])
        mark = "?" if orders.is_sqlite else "%s"
        connection.execute(text.replace("?", mark), parameters)
        connection.commit()

    assert orders.app.job("refused").status() is JobStatus.DEAD
    [line] = store.run(store.journal.journal(BATCH, limit=10))
    assert (line.job_id, line.node, line.status) == ("refused", "node", JobStatus.DEAD)


def test_an_id_that_is_another_jobs_leaves_that_one_alone(orders: Orders) -> None:
    orders.send.using(job_id="mine").enqueue("a")
    with orders.driver() as open_one:
        orders.send.using(tx=open_one.tx, job_id="mine").enqueue("b")
        orders.send.using(tx=open_one.tx).enqueue("c")

    assert orders.run() == ["a", "c"]


def test_the_same_id_again_is_the_same_job(orders: Orders) -> None:
    for _ in range(2):
        with orders.driver() as open_one:
            orders.send.using(tx=open_one.tx, job_id="mine").enqueue("a")

    assert orders.run() == ["a"]


def test_jobs_with_options_are_admitted_with_them(orders: Orders) -> None:
    with orders.driver() as open_one:
        job = orders.send.using(
            tx=open_one.tx, priority="high", tenant="acme", tags=["x"], delay="1h", ordering_key="o"
        ).enqueue("a")

    info = job.info()
    assert (info.status, info.tenant, info.tags) == (JobStatus.PENDING, "acme", ("x",))
    assert info.ordering_key == "o"
    assert orders.app.tenant("acme").job(job.id).status() is JobStatus.PENDING
    with pytest.raises(JobNotFound):
        orders.app.tenant("other").job(job.id).status()


def test_a_delay_begins_when_the_job_is_submitted(orders: Orders) -> None:
    with orders.driver() as open_one:
        job = orders.send.using(tx=open_one.tx, delay="1h").enqueue("a")

    info = job.info()
    assert info.due_at is not None
    assert (info.due_at - info.created_at).total_seconds() <= 3600


def test_jobs_of_a_transaction_follow_those_submitted_before(orders: Orders) -> None:
    orders.send.enqueue("a")
    with orders.driver() as open_one:
        orders.send.using(tx=open_one.tx).enqueue("b")
    orders.app.store.run(orders.app.store.intake.admit(wait=True))  # type: ignore[union-attr]
    orders.send.enqueue("c")

    assert orders.run() == ["a", "b", "c"]
