# SPDX-License-Identifier: MIT
"""Tasks for tests of workflows, which note in what order they ran."""

from __future__ import annotations

from packhorse import Context, RetryPolicy
from packhorse.testing import TestApp
from packhorse.workflows.handle import Workflow


class Shop:
    """An app with some tasks, and what they did."""

    def __init__(self, app: TestApp) -> None:
        self.app = app
        self.ran: list[str] = []
        self.broken = True  #: `fail` does
        once = RetryPolicy(max_retries=0)

        @app.task
        def double(number: int) -> int:
            self.ran.append(f"double {number}")
            return 2 * number

        @app.task
        def total(numbers: list[int]) -> int:
            self.ran.append(f"total {numbers}")
            return sum(numbers)

        @app.task
        def label(text: int | None, prefix: str = "no ") -> str:
            self.ran.append(f"label {text}")
            return f"{prefix}{text}"

        @app.task(retry=once)
        def fail(number: int = 0) -> int:
            self.ran.append("fail")
            if self.broken:
                raise ValueError("it fails")
            return number

        @app.task
        def split(ctx: Context, parts: int) -> int:
            self.ran.append(f"split {parts}")
            nodes = [ctx.flow.add(self.double.call(number)) for number in range(parts)]
            ctx.flow.add(self.total.call([node.result for node in nodes]))
            return parts

        self.double, self.total, self.label = double, total, label
        self.fail, self.split = fail, split


def states(workflow: Workflow) -> dict[str, str]:
    return {node.name: node.state for node in workflow.nodes()}
