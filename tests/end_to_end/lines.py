# SPDX-License-Identifier: MIT
"""The line from one worker to its store, which a test interrupts while the store itself lives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from faults.proxy import Proxy
from tests.end_to_end.support import World


@dataclass(frozen=True, slots=True)
class Line:
    """Where a worker finds its store, and how to let nothing of what it writes arrive."""

    url: str
    interrupted: Callable[[], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def line_to(world: World) -> Iterator[Line]:
    """A line to the store of a world: a proxy, or for a file its write lock."""
    found = urlsplit(world.url)
    if found.scheme == "sqlite":
        yield Line(world.url, world.locked_store)
        return
    if found.scheme == "unix":
        proxy = Proxy(found.path)
        url = found._replace(scheme="redis", netloc=f"127.0.0.1:{proxy.port}", path="").geturl()
    else:
        proxy = Proxy(found.hostname or "", found.port or 0)
        user = f"{found.username}@" if found.username else ""
        url = found._replace(netloc=f"{user}127.0.0.1:{proxy.port}").geturl()

    @contextlib.contextmanager
    def interrupted() -> Iterator[None]:
        proxy.hold()
        yield
        proxy.cut()  # what was held is lost with its connection
        proxy.let_go()

    try:
        yield Line(url, interrupted)
    finally:
        proxy.close()
