# SPDX-License-Identifier: MIT
"""An app with a queue of flows, and flows of the real PenguiFlow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

from penguiflow import Message, Node, NodePolicy, PenguiFlow

from packhorse import JobHandle, Packhorse, RetryPolicy
from packhorse.events import Event
from packhorse.hosting.penguiflow import FlowHost

Work = Callable[[Message, Any], Awaitable[Any]]


def node(work: Work, name: str = "only", **policy: Any) -> Node:
    return Node(work, name=name, policy=NodePolicy(validate="none", **policy))


class Yard:
    """Jobs of the task `ask`, which a host runs in flows."""

    def __init__(self, url: str = "memory://") -> None:
        self.app = Packhorse(url)
        self.app.queue("flows", retry=RetryPolicy(max_retries=0))
        self.ask = self.app.task(name="ask", queue="flows", timeout="20s")(_declared)
        self.events: list[Event] = []
        self.app.bus.subscribe("flow.*", self.events.append)
        self.built: list[PenguiFlow] = []

    def build(self, work: Work, *nodes: Node, **options: Any) -> Callable[[], PenguiFlow]:
        """A flow of one node, or of those given."""

        def made() -> PenguiFlow:
            line = [node(work), *nodes]
            edges = [(first, [second]) for first, second in pairwise(line)]
            flow = PenguiFlow(*(edges or [(line[0], [])]), **options)
            self.built.append(flow)
            return flow

        return made

    def host(self, work: Work, *nodes: Node, flow: Any = None, **options: Any) -> FlowHost:
        build = self.build(work, *nodes, **(flow or {}))
        return FlowHost(self.app, build, queues=["flows"], loops=options.pop("loops", 2), **options)

    async def ran(
        self, work: Work, *nodes: Node, timeout: str = "20s", **options: Any
    ) -> JobHandle[Any]:
        """A job that such a host has run to its end."""
        job: JobHandle[Any] = await self.ask.using(timeout=timeout).aenqueue("why")
        async with asyncio.timeout(30):
            await self.host(work, *nodes, **options).run(burst=True)
        return job

    def told(self, name: str) -> list[Any]:
        return [each for each in self.events if each.name == name]


def _declared(question: str) -> Any:
    raise NotImplementedError  # the work is done in flows
