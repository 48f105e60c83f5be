# SPDX-License-Identifier: MIT
"""Two orders: one is picked and shipped; the other is sold out, at first."""

from __future__ import annotations

from examples.order_workflow.jobs import SOLD_OUT, app, place_order
from packhorse.workflows.handle import Workflow


def main() -> None:
    app.store.migrate()
    one = place_order(1, 500)
    app.run(burst=True)
    print(f"order 1: {_shown(one)}")
    print(f"its parcel: {one.explain('ship').reasons[0].text}")
    one.job("pick").signal("picked", {"by": "ada"})
    app.run(burst=True)
    print(f"order 1: {one.status()}, {one.result(0)}")

    SOLD_OUT.touch()
    two = place_order(2, 900)
    two.job("pick").signal("picked", {"by": "bob"})
    app.run(burst=True)
    print(f"order 2: {two.status()}, {_shown(two)}")
    print(f"its customer: {two.job('tell_customer').result(0)}")

    SOLD_OUT.unlink()
    two.retry()
    app.run(burst=True)
    print(f"order 2: {two.status()}, {two.job('ship').result(0)}")
    app.close()


def _shown(workflow: Workflow) -> str:
    return ", ".join(f"{node.name} {node.state}" for node in workflow.nodes())


if __name__ == "__main__":
    main()
