# SPDX-License-Identifier: MIT
"""A flow of two nodes: look something up, then answer."""

from __future__ import annotations

import asyncio
from typing import Any

from penguiflow import Message, Node, NodePolicy, PenguiFlow

_KNOWN = (("penguins", "They swim."), ("mules", "They carry."))


async def look_up(message: Message, _context: Any) -> Message:
    subject = message.payload["subject"]
    if subject == "dragons":
        raise LookupError("nothing is known of dragons")
    if subject == "glaciers":
        await asyncio.sleep(60)  # longer than its job may take
    return message.model_copy(update={"payload": dict(_KNOWN)[subject]})


async def answer(message: Message, _context: Any) -> Message:
    text = f"{message.payload} ({message.headers.tenant} asked)"
    return message.model_copy(update={"payload": {"answer": text}})


def build() -> PenguiFlow:
    """A flow that does not run yet; the host starts and stops it."""
    first = Node(look_up, name="look_up", policy=NodePolicy(validate="none"))
    second = Node(answer, name="answer", policy=NodePolicy(validate="none"))
    return PenguiFlow((first, [second]))
