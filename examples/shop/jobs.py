# SPDX-License-Identifier: MIT
"""The shop's app: its queues and its tasks. Nothing here knows of the demo.

Run a worker for it:  packhorse worker examples.shop.jobs:app
"""

from __future__ import annotations

import asyncio
import logging
import os
import time

from packhorse import Context, Packhorse, Reject, RetryPolicy

# The store comes from PACKHORSE_URL, so that the same code runs on a laptop and in production.
app = Packhorse()

log = logging.getLogger("shop")

PATIENT = RetryPolicy(max_retries=5, initial_delay="200ms", max_delay="1s")
BRIEF = RetryPolicy(max_retries=2, initial_delay="200ms", max_delay="400ms")

# The lower number is served first: customers wait for payments, no one waits for a thumbnail.
app.queue("payments", priority=0, retry=PATIENT)
app.queue("reports", priority=1)
app.queue("mail", priority=2, dead_letter="undeliverable")
app.queue("default", priority=3)
# Limits hold over all workers. The phone company takes ten messages a second, no more.
app.queue("messages", priority=1, rate_limit=(10, "1s"))
# Tenants share a queue by weight, here equally, however many jobs one of them has waiting.
app.queue("news", priority=2, concurrency=4)


@app.task(queue="mail")
async def send_mail(order: int, to: str) -> str:
    """A coroutine: hundreds of them can wait for the network at once."""
    if "@" not in to:
        raise Reject(f"{to!r} is no address")  # no retry would help: a dead letter at once
    await asyncio.sleep(0.1)
    return f"order {order} confirmed to {to}"


@app.task(queue="mail")
async def send_reminder(order: int) -> str:
    """Submitted with a delay."""
    await asyncio.sleep(0.05)
    return f"order {order} is still waiting for you"


@app.task(queue="messages")
async def send_message(order: int) -> str:
    """As many a second as the queue's rate limit lets start."""
    return f"order {order} is on its way"


@app.task(queue="news")
async def send_news(number: int) -> int:
    """Submitted for two tenants: one with many readers, one with few."""
    await asyncio.sleep(0.02)
    return number


@app.task(queue="payments", timeout="5s")
async def take_payment(ctx: Context, order: int, cents: int, bank_is_down: int) -> str:
    """Fails as often as it is told to, as banks do; the retries are Packhorse's business."""
    await asyncio.sleep(0.05)
    if ctx.job.attempt <= bank_is_down:
        raise ConnectionError("the bank does not answer")
    return f"order {order}: {cents} cents"


@app.task(queue="reports")
def make_report(ctx: Context, name: str, pages: int) -> str:
    """A plain function runs in a thread. Its progress can be read from anywhere."""
    for page in range(pages):
        if ctx.wait_cancelled(0.1):  # a sleep that ends when the job is not wanted any more
            break
        ctx.progress(page + 1, pages, name)
    return f"{name}.pdf"


@app.task
def make_thumbnail(picture: str) -> str:
    """Short work, submitted in bursts."""
    time.sleep(0.03)
    return picture.replace(".jpg", ".small.jpg")


@app.task(retry=BRIEF)
def print_label(order: int) -> str:
    """Fail until the cause is fixed: SHOP_PAPER=1 puts paper into the printer."""
    log.info("order %s goes to the printer", order)
    if not os.environ.get("SHOP_PAPER"):
        raise RuntimeError("the printer is out of paper")
    return f"label of order {order}"


@app.task(retry=BRIEF)
async def check_price(product: int) -> int:
    """Run for every product of the catalogue in one batch; one of them has no price."""
    if product == 1_300:
        raise Reject(f"product {product} has no price")
    return product * 7 % 1_000


@app.task
async def pick(product: str) -> str:
    """One of the parts of an order: they are picked side by side."""
    await asyncio.sleep(0.3)
    return product


@app.task
async def pack(products: list[str]) -> str:
    """Begins when every part was picked, and is given what the picks returned."""
    await asyncio.sleep(0.3)
    return f"a parcel with {', '.join(products)}"


@app.task
async def ship(parcel: str) -> str:
    """The last node of the workflow: its result is the workflow's."""
    return f"{parcel}, on its way"


@app.every("2s", queue="reports")
async def count_stock() -> None:
    """A tick: every two seconds, by one of the workers, however many there are."""


@app.task(queue="reports")
async def restock(ctx: Context, product: str) -> str:
    """What the demo cancels; one of them while it runs."""
    await ctx.await_cancelled("30s")
    return product
