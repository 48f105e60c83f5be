# SPDX-License-Identifier: MIT
"""What the shop submits, and which job belongs to which kind.

A kind is one function that returns calls. To show something new, write one and list it in
`OPENING`, or in `RUSH` if it is to come while the workers are busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from examples.shop.jobs import (
    app,
    make_report,
    make_thumbnail,
    print_label,
    restock,
    send_mail,
    send_message,
    send_news,
    send_reminder,
    take_payment,
)
from packhorse import Call, JobHandle

Calls = Iterable[Call[Any]]

PRODUCTS: Final = ("tea", "coffee", "cocoa", "honey", "salt", "rope")
#: How long after its order a customer is reminded; short, because you are watching.
REMIND_AFTER: Final = "4s"


class Orders:
    """Everything submitted so far: an id is here only once `enqueue` has returned."""

    def __init__(self) -> None:
        self.kind_of: dict[str, str] = {}  #: by job id, in the order of submitting

    def submit(self, kinds: Iterable[tuple[str, Callable[[], Calls]]]) -> None:
        """Submit each kind in one round trip."""
        for kind, calls in kinds:
            self._note(kind, app.enqueue_many(calls()))

    def of(self, kind: str) -> list[str]:
        """The ids of one kind."""
        return [job_id for job_id, its_kind in self.kind_of.items() if its_kind == kind]

    def _note(self, kind: str, handles: Iterable[JobHandle[Any]]) -> None:
        for handle in handles:
            self.kind_of[handle.id] = kind


def mails() -> Calls:
    return [send_mail.call(order, f"customer{order}@example.com") for order in range(240)]


def bad_addresses() -> Calls:
    return [send_mail.call(order, "no such address") for order in range(2)]


def payments() -> Calls:
    # Of four payments, one works at once, the others after one, two or three answers missing.
    return [take_payment.call(order, 100 + order, order % 4) for order in range(48)]


def reports() -> Calls:
    return [make_report.call(product, 40) for product in PRODUCTS[:4]]


def labels() -> Calls:
    return [print_label.call(order) for order in range(3)]


def reminders() -> Calls:
    return [send_reminder.call(order).using(delay=REMIND_AFTER) for order in range(10)]


def restocking() -> Calls:
    return [restock.call(product).using(priority="critical") for product in PRODUCTS]


def messages() -> Calls:
    return [send_message.call(order) for order in range(30)]


def big_news() -> Calls:
    return [send_news.call(number).using(tenant="big") for number in range(120)]


def small_news() -> Calls:
    # Submitted behind the big tenant's, and not sent behind them.
    return [send_news.call(number).using(tenant="small") for number in range(6)]


def urgent_mails() -> Calls:
    # Submitted after all the other mail, and sent before it.
    to = "the-boss@example.com"
    return [send_mail.call(order, to).using(priority="critical") for order in range(5)]


def thumbnails() -> Calls:
    return [make_thumbnail.call(f"picture{number}.jpg") for number in range(150)]


OPENING: Final = (
    ("mail", mails),
    ("bad address", bad_addresses),
    ("payment (flaky)", payments),
    ("report", reports),
    ("label (poison)", labels),
    ("reminder (scheduled)", reminders),
    ("restock (cancelled)", restocking),
    ("mail (urgent)", urgent_mails),
    ("message (limited)", messages),
    ("news (big tenant)", big_news),
    ("news (small tenant)", small_news),
)
RUSH: Final = (("thumbnail (burst)", thumbnails),)
