# SPDX-License-Identifier: MIT
"""What a supervisor answers when it is asked over HTTP: four pages, read-only, no store for /livez.

/livez    200, or 503 when an event loop is blocked beyond the time of its jobs
/readyz   200 when a process has its lease and claims jobs, else 503 with the reason
/metrics  counts and depths as Prometheus reads them
/status   every process as one JSON document
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

import msgspec

from packhorse.errors import ConfigError
from packhorse.supervisor.metrics import metrics_text
from packhorse.supervisor.status import not_ready, status_document
from packhorse.supervisor.supervisor import Supervisor

__all__ = ["Address", "parse_address", "probes"]

Address = tuple[str, int]
_Answer = tuple[int, str, bytes]

#: How much of a request is read, and for how long.
_REQUEST_BYTES: Final = 8_192
_REQUEST_S: Final = 5.0
_PORT_MAX: Final = 65_535
_REASONS: Final = ((200, "OK"), (404, "Not Found"), (405, "Method Not Allowed"))
_TEXT: Final = "text/plain; charset=utf-8"
_UNAVAILABLE: Final = 503


def parse_address(text: str) -> Address:
    """`127.0.0.1:9191`, `[::1]:9191`, or `9191` on this machine alone."""
    host, colon, port = text.rpartition(":")
    if not (port.isdecimal() and int(port) <= _PORT_MAX and (host or not colon)):
        raise ConfigError(f"{text!r} is no address; write host:port, such as 127.0.0.1:9191")
    return host.strip("[]") or "127.0.0.1", int(port)


@contextlib.asynccontextmanager
async def probes(supervisor: Supervisor, address: Address | None) -> AsyncIterator[Address | None]:
    """Answer while inside; yields the address that was bound, if one was wanted."""
    if address is None:
        yield None
        return
    routes = _routes(supervisor)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_REQUEST_S):
                await _serve(routes, reader, writer)
        writer.close()

    try:
        server = await asyncio.start_server(serve, *address, limit=_REQUEST_BYTES)
    except OSError as error:
        raise ConfigError(
            f"--http: {address[0]}:{address[1]} cannot be listened on ({error}); give another port"
        ) from None
    try:
        bound = server.sockets[0].getsockname()
        yield bound[0], bound[1]
    finally:
        server.close()


def _routes(supervisor: Supervisor) -> dict[str, Callable[[], Awaitable[_Answer]]]:
    async def livez() -> _Answer:
        if supervisor.alive:
            return 200, _TEXT, b"ok\n"
        return _UNAVAILABLE, _TEXT, b"an event loop is blocked beyond the time of its jobs\n"

    async def readyz() -> _Answer:
        reason = not_ready(supervisor)
        if reason is None:
            return 200, _TEXT, b"ok\n"
        return _UNAVAILABLE, _TEXT, f"{reason}\n".encode()

    async def metrics() -> _Answer:
        text = await metrics_text(supervisor)
        return 200, "text/plain; version=0.0.4; charset=utf-8", text.encode()

    async def status() -> _Answer:
        document = status_document(supervisor)
        return 200, "application/json", msgspec.json.encode(document) + b"\n"

    return {"/livez": livez, "/readyz": readyz, "/metrics": metrics, "/status": status}


async def _serve(
    routes: Mapping[str, Callable[[], Awaitable[_Answer]]],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Answer one request, and close: probes come seldom."""
    head = await reader.readuntil(b"\r\n\r\n")
    method, _, rest = head.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")
    path = rest.partition(" ")[0].partition("?")[0]
    route = routes.get(path)
    if method not in ("GET", "HEAD"):
        answer: _Answer = (405, _TEXT, b"only GET\n")
    elif route is None:
        answer = (404, _TEXT, f"there is {', '.join(routes)}\n".encode())
    else:
        answer = await route()
    code, kind, body = answer
    reason = dict(_REASONS).get(code, "Service Unavailable")
    writer.write(
        f"HTTP/1.1 {code} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\nCache-Control: no-store\r\n\r\n".encode()
    )
    if method != "HEAD":
        writer.write(body)
    await writer.drain()
