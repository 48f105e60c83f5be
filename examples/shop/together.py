# SPDX-License-Identifier: MIT
"""Work that belongs together: a batch with one bar, an order whose parts follow, and a tick."""

from __future__ import annotations

from typing import Final, NamedTuple

from examples.shop.jobs import app, check_price, count_stock, pack, pick, ship
from packhorse import gather

PRODUCTS: Final = 2_000
ORDER: Final = ("tea", "honey", "rope")


class Bar(NamedTuple):
    """How far something is."""

    name: str
    done: float
    total: float
    note: str = ""


class Together:
    """The batch, the workflow and the schedule of the demo."""

    def __init__(self) -> None:
        # The items come from an iterator, 50 to a job; a million would need no more memory.
        self.prices = app.batch(check_price, range(PRODUCTS), batch_size=50)
        # Three picks side by side, then one pack of what they brought, then it is shipped.
        picks = gather(*(pick.call(product) for product in ORDER))
        self.order = picks.then(pack).then(ship).start("order-17")

    @property
    def has_ended(self) -> bool:
        return self.prices.progress().status != "running" and self.order.status().is_final

    @property
    def ticks(self) -> int:
        """How often the stock was counted, by whichever worker."""
        return len(app.schedules.get(count_stock.name).fires)

    def bars(self) -> list[Bar]:
        prices, order = self.prices.progress(), self.order.info()
        return [
            Bar("batch", prices.processed, prices.total, f"prices, {prices.failed} failed"),
            Bar("order", order.completed, order.nodes, f"order-17, {order.state}"),
        ]

    def conclusion(self) -> str:
        """What became of them."""
        prices = self.prices.progress()
        (failure,) = self.prices.failures()
        return (
            f"The batch checked {prices.processed} of {prices.total} prices; item "
            f"{failure.index} failed: {failure.message}\n"
            f"Order 17 was picked, packed and shipped: {self.order.result()}\n"
            f"The stock was counted {self.ticks} times, on schedule, by one worker at a time."
        )
