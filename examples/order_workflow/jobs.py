# SPDX-License-Identifier: MIT
"""The app: an order is paid, reserved and picked side by side, and shipped after that.

Run a worker for it:  packhorse worker -A examples.order_workflow.jobs
"""

from __future__ import annotations

from pathlib import Path

from packhorse import Context, Packhorse, RetryPolicy
from packhorse.workflows.handle import Workflow

SOLD_OUT = Path("sold-out")
app = Packhorse("sqlite:///orders.db")


@app.task
def pay(order: int, cents: int) -> str:
    return f"receipt {order} over {cents} cents"


@app.task(retry=RetryPolicy(max_retries=0))
def reserve(order: int) -> str:
    if SOLD_OUT.exists():
        raise LookupError(f"nothing is left for order {order}")
    return f"shelf {order}"


@app.task
def pick(ctx: Context) -> str:
    """A courier fetches it, and says so; meanwhile no slot is held."""
    answer = ctx.wait_for("picked", timeout="1d")
    return str(answer["by"])


@app.task
def ship(receipt: str, shelf: str, picker: str) -> str:
    return f"{receipt}, from {shelf}, picked by {picker}"


@app.task
def tell_customer(order: int, parcel: str | None) -> str:
    if parcel is None:
        return f"order {order} is late, and we are sorry"
    return f"order {order} is on its way: {parcel}"


def place_order(order: int, cents: int) -> Workflow:
    """Start the workflow of an order; a second call while it runs is answered by the first."""
    flow = app.workflow(f"order-{order}")
    paid = flow.add(pay.call(order, cents))
    reserved = flow.add(reserve.call(order))
    picked = flow.add(pick.call())
    shipped = flow.add(ship.call(paid.result, reserved.result, picked.result))
    # The customer hears of it in any case; what failed is a failure all the same.
    flow.add(tell_customer.call(order, shipped.result), on_failure="run")
    return flow.start()
