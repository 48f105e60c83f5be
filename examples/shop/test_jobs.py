# SPDX-License-Identifier: MIT
"""The shop's tests, as its programmers would write them: no server, no sleep, no mock."""

from __future__ import annotations

import pytest

from examples.shop.jobs import (
    make_report,
    print_label,
    send_mail,
    send_message,
    send_reminder,
    take_payment,
)
from packhorse.testing import TestApp, make_context


async def test_a_task_is_still_a_function() -> None:
    assert await send_mail(7, "ada@example.com") == "order 7 confirmed to ada@example.com"


def test_a_payment_is_tried_again_until_the_bank_answers(packhorse_app: TestApp) -> None:
    payment = take_payment.enqueue(order=1, cents=500, bank_is_down=3)

    assert packhorse_app.run_jobs() == 4
    assert payment.result() == "order 1: 500 cents"


def test_mail_to_no_address_is_a_dead_letter_at_once(packhorse_app: TestApp) -> None:
    mail = send_mail.enqueue(1, "no such address")

    assert packhorse_app.run_jobs() == 1
    assert (mail.info().dead_reason, mail.info().dead_letter) == ("rejected", "undeliverable")


def test_a_reminder_comes_after_three_days(packhorse_app: TestApp) -> None:
    reminder = send_reminder.using(delay="3d").enqueue(1)

    packhorse_app.assert_enqueued(send_reminder, {"order": 1}, queue="mail", status="pending")
    packhorse_app.run_jobs()

    assert packhorse_app.clock.monotonic() >= 3 * 86_400
    assert reminder.result() == "order 1 is still waiting for you"


def test_thirty_messages_take_at_least_two_seconds(packhorse_app: TestApp) -> None:
    send_message.enqueue_many([{"order": order} for order in range(30)])

    assert packhorse_app.run_jobs() == 30
    assert packhorse_app.clock.monotonic() >= 2


def test_a_label_is_printed_before_enqueue_returns(
    packhorse_app: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PAPER", "1")

    with packhorse_app.eager():
        assert print_label.enqueue(3).result() == "label of order 3"


def test_a_report_says_how_far_it_is_and_stops_when_it_is_not_wanted() -> None:
    ctx, unwanted = make_context(), make_context()
    unwanted.request_cancel()

    assert make_report.function(ctx, "tea", 2) == "tea.pdf"
    make_report.function(unwanted, "tea", 40)

    assert [(note.done, note.total) for note in ctx.noted] == [(1, 2), (2, 2)]
    assert unwanted.noted == ()
