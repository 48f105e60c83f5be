# SPDX-License-Identifier: MIT
"""Answer HTTP requests: four read-only pages.

/livez    200, or 503 when an event loop is blocked beyond the time of its jobs; asks no store
/readyz   200 when a process has its lease and claims jobs, else 503 with the reason
/metrics  counts and depths in the text format of Prometheus
/status   every process as one JSON document
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from packhorse.errors import ConfigError
from packhorse.runtime.supervisor.child_process import ChildProcess
from packhorse.runtime.supervisor.exposition import Figures, exposition
from packhorse.runtime.supervisor.supervisor import Supervisor
from packhorse.stores.protocol import Store
from packhorse.stores.requests import Counts

_LOG: Final = logging.getLogger("packhorse.supervisor")
#: How long the store may take to count its queues.
_COUNTS_S: Final = 2.0

Address = tuple[str, int]
Answer = tuple[int, str, bytes]
Routes = Mapping[str, Callable[[], Awaitable[Answer]]]
#: The text format of Prometheus.
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

#: Limits of one request.
_REQUEST_BYTES: Final = 8_192
_REQUEST_S: Final = 5.0
_PORT_MAX: Final = 65_535
_REASONS: Final = ((200, "OK"), (404, "Not Found"), (405, "Method Not Allowed"))
_TEXT: Final = "text/plain; charset=utf-8"
_UNAVAILABLE: Final = 503


def parse_address(text: str) -> Address:
    """Read `127.0.0.1:9191`, `[::1]:9191`, or `9191` for the loopback address."""
    host, colon, port = text.rpartition(":")
    if not (port.isdecimal() and int(port) <= _PORT_MAX and (host or not colon)):
        raise ConfigError(f"{text!r} is no address; write host:port, such as 127.0.0.1:9191")
    return host.strip("[]") or "127.0.0.1", int(port)


@contextlib.asynccontextmanager
async def probes(supervisor: Supervisor, address: Address | None) -> AsyncIterator[Address | None]:
    """Answer while inside; yield the address that was bound, if any."""
    if address is None:
        yield None
        return
    async with served(_routes(supervisor), address) as bound:
        yield bound


@contextlib.asynccontextmanager
async def served(routes: Routes, address: Address) -> AsyncIterator[Address]:
    """Answer these routes while inside; yield the address that was bound."""

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


def _routes(supervisor: Supervisor) -> Routes:
    async def livez() -> Answer:
        if supervisor.alive:
            return 200, _TEXT, b"ok\n"
        return _UNAVAILABLE, _TEXT, b"an event loop is blocked beyond the time of its jobs\n"

    async def readyz() -> Answer:
        reason = not_ready(supervisor)
        if reason is None:
            return 200, _TEXT, b"ok\n"
        return _UNAVAILABLE, _TEXT, f"{reason}\n".encode()

    async def metrics() -> Answer:
        text = await metrics_text(supervisor)
        return 200, METRICS_TYPE, text.encode()

    async def status() -> Answer:
        document = status_document(supervisor)
        return 200, "application/json", msgspec.json.encode(document) + b"\n"

    return {"/livez": livez, "/readyz": readyz, "/metrics": metrics, "/status": status}


async def _serve(
    routes: Routes,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Answer one request, and close the connection."""
    head = await reader.readuntil(b"\r\n\r\n")
    method, _, rest = head.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")
    path = rest.partition(" ")[0].partition("?")[0]
    route = routes.get(path)
    if method not in ("GET", "HEAD"):
        answer: Answer = (405, _TEXT, b"only GET\n")
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


def not_ready(supervisor: Supervisor) -> str | None:
    """Return why no jobs are claimed; None if they are."""
    if supervisor.stopping_at is not None:
        return "stopping"
    if supervisor.quiet:
        return "quiet"
    begun = [child for child in supervisor.children if child.hello is not None]
    reports = [child.report for child in begun if not child.quiet]
    if not reports:
        return "quiet" if begun else "no process has begun yet"
    if any(each.lease and not each.trouble for each in reports):
        return None
    troubles = sorted({each.trouble for each in reports if each.trouble})
    return f"the store fails at {', '.join(troubles)}" if troubles else "no process has a lease"


def status_document(supervisor: Supervisor) -> dict[str, Any]:
    """Describe every process: what it runs, what it has done, what is stuck in it."""
    hello = supervisor.hello
    slots = {id(slot.child): slot for slot in supervisor.slots if slot.child is not None}
    processes = []
    for child in supervisor.children:
        slot = slots.get(id(child))
        processes.append(
            {
                **_process(supervisor, child),
                "seat": None if slot is None else slot.number,
                "restarts": 0 if slot is None else slot.restarts,
                "draining": slot is None,
            }
        )
    return {
        "app": "" if hello is None else hello.app,
        "store": "" if hello is None else hello.label,
        "queues": [] if hello is None else list(hello.queues),
        "ready": not_ready(supervisor) is None,
        "quiet": supervisor.quiet,
        "stopping": supervisor.stopping_at is not None,
        "restarts": _restarts(supervisor),
        "processes": processes,
    }


def _process(supervisor: Supervisor, child: ChildProcess) -> dict[str, Any]:
    hello, report, state = child.hello, child.report, supervisor.state_of(child)
    return {
        "pid": child.pid,
        "worker": None if hello is None else hello.worker,
        "version": "" if hello is None else hello.version,
        "quiet": child.quiet,
        "upS": round(state.now - child.started_at, 1),
        "loopTurnedS": round(state.now - state.turned_at, 1) if state.turned_at else None,
        "leaseKept": supervisor.renewals(child),
        "running": [
            {
                "jobId": each.job_id,
                "fence": each.fence,
                "runningS": round(state.now - each.started, 1),
                "leftS": round(each.expires - state.now, 1),
            }
            for each in state.running
        ],
        "ahead": report.ahead,
        "unsettled": report.unsettled,
        "succeeded": report.succeeded,
        "failed": report.failed,
        "retried": report.retried,
        "dead": report.dead,
        "expired": report.expired,
        "p95DurationMs": report.p95_duration_ms,
        "trouble": report.trouble,
        "blocked": report.blocked,
        "stuck": [
            {
                "jobId": each.job_id,
                "task": each.task,
                "kind": each.kind,
                "stuckS": each.seconds,
                "stack": each.stack,
            }
            for each in report.stuck
        ],
        "lastLog": child.memory.last_log,
    }


async def metrics_text(supervisor: Supervisor) -> str:
    """Write all metrics since the supervisor started."""
    figures = Figures(
        past=(supervisor.past, supervisor.recovery.settled),
        living=[child.report for child in supervisor.children],
        processes=len(supervisor.children),
        restarts=_restarts(supervisor),
        queues=await _counts(supervisor),
        now_us=supervisor.clock.now_us(),
    )
    return exposition(figures)


def _restarts(supervisor: Supervisor) -> int:
    return sum(slot.restarts for slot in supervisor.slots)


async def _counts(supervisor: Supervisor) -> Sequence[Counts]:
    """Count the served queues; return nothing while the store does not answer."""
    client, hello = supervisor.store_client, supervisor.hello
    if client is None or hello is None:
        return ()
    try:
        return await asyncio.wait_for(
            client.ask(lambda store: counts_of(store, hello.queues)), _COUNTS_S
        )
    except Exception as error:  # noqa: BLE001 - the totals are answered all the same
        _LOG.warning("the queues could not be counted: %s", error)
        return ()


def counts_of(store: Store, queues: Sequence[str]) -> Sequence[Counts]:
    """Count these queues, empty ones too."""
    held = {each.queue: each for each in store.run(store.inspection.counts())}
    return [held.get(name) or Counts(name, {}) for name in queues]
