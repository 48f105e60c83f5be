# SPDX-License-Identifier: MIT
"""Server-sent events: changes of the fleet, and the progress of one job.

One read of the store serves every open fleet stream of a process, at most once a second and only
while a stream is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, Self

import msgspec
from starlette.responses import StreamingResponse

from packhorse.app import Packhorse
from packhorse.client.documents import job_document, queue_document, shown_job
from packhorse.core.job import TERMINAL
from packhorse.errors import JobNotFound, StoreError
from packhorse.web.calls import ApiAnswer, ApiCall, answers
from packhorse.web.count_cache import FleetLooks
from packhorse.web.problems import WebRefusal

#: Streams that one process serves at once.
STREAMS_MAX: Final = 100
_LOOK_S: Final = 1.0
#: Send a line at least so often, so that proxies keep the connection open.
_SILENCE_S: Final = 15.0
#: A stream ends after so long; the browser opens another one.
_STREAM_S: Final = 3_600.0


class FleetFeed:
    """Reads the store for all streams, and wakes them when something has changed."""

    def __init__(self, app: Packhorse, looks: FleetLooks) -> None:
        self._app = app
        self._looks = looks
        self._changed = asyncio.Condition()
        self._looking: asyncio.Task[None] | None = None
        self._streams = 0
        self.number = 0
        self.latest: bytes = b""

    @property
    def is_full(self) -> bool:
        """Whether no further stream is accepted."""
        return self._streams >= STREAMS_MAX

    async def __aenter__(self) -> Self:
        self._streams += 1
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._streams -= 1
        if not self._streams and self._looking is not None:
            self._looking.cancel()
            self._looking, self.latest = None, b""

    async def after(self, number: int, wait_s: float) -> bool:
        """Wait for a snapshot after this number; return whether there is one."""
        async with self._changed:
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait_for(lambda: self.latest and self.number != number)
            except TimeoutError:
                return False
        return True

    async def _look(self) -> None:
        while True:
            try:
                found = await self._snapshot()
            except StoreError:  # it may be back next time
                found = self.latest
            if found != self.latest:
                async with self._changed:
                    self.number, self.latest = self.number + 1, found
                    self._changed.notify_all()
            await asyncio.sleep(_LOOK_S)

    async def _snapshot(self) -> bytes:
        queues = [queue_document(queue) for queue in await self._looks.queues()]
        workers = await self._app.insights.aworkers()
        shown = [
            {name: queue[name] for name in ("name", "paused", "closed", "depth", "counts")}
            for queue in queues
        ]
        live = sum(worker.live for worker in workers)
        return msgspec.json.encode({"queues": shown, "workers": live})


@answers("", "Follow what the queues hold", media="text/event-stream")
async def fleet_events(call: ApiCall) -> ApiAnswer:
    """Send the counts of the queues whenever they change."""
    feed: FleetFeed = call.request.app.state.feed
    if feed.is_full:
        raise WebRefusal(
            *(429, "TOO_MANY_STREAMS"),
            f"{STREAMS_MAX} streams are open already",
            headers={"Retry-After": "30"},
        )
    return _streamed(_fleet(feed, call))


async def _fleet(feed: FleetFeed, call: ApiCall) -> AsyncIterator[bytes]:
    ends_at = asyncio.get_running_loop().time() + _STREAM_S
    number = -1
    async with feed:
        while asyncio.get_running_loop().time() < ends_at:
            if await feed.after(number, _SILENCE_S):
                number = feed.number
                yield _event("fleet", feed.latest, number)
            else:
                yield b": still here\n\n"
            if await call.request.is_disconnected():
                return


@answers("", "Follow a job until it has finished", media="text/event-stream")
async def job_events(call: ApiCall) -> ApiAnswer:
    """Send a job's status and progress whenever they change, until it has finished."""
    await call.job().astatus()  # raises if there is none
    return _streamed(_job(call))


async def _job(call: ApiCall) -> AsyncIterator[bytes]:
    handle, redact = call.job(), call.app.bus.redact
    ends_at = asyncio.get_running_loop().time() + _STREAM_S
    before, quiet_s = b"", 0.0
    while asyncio.get_running_loop().time() < ends_at:
        try:
            info = await handle.ainfo()
        except JobNotFound:
            return
        document = job_document(shown_job(info, redact))
        names = ("id", "status", "attempts", "progress", "error", "finishedAt")
        found = msgspec.json.encode({name: document[name] for name in names})
        quiet_s = quiet_s + _LOOK_S if found == before else 0.0
        if found != before:
            yield _event("job", found, None)
        elif quiet_s >= _SILENCE_S:
            quiet_s = 0.0
            yield b": still here\n\n"
        before = found
        if info.status in TERMINAL or await call.request.is_disconnected():
            return
        await asyncio.sleep(_LOOK_S)


def _event(name: str, data: bytes, number: int | None) -> bytes:
    place = b"" if number is None else b"id: %d\n" % number
    return b"event: %s\n%sdata: %s\n\n" % (name.encode(), place, data)


def _streamed(lines: AsyncIterator[bytes]) -> ApiAnswer:
    headers: dict[str, Any] = {"X-Accel-Buffering": "no"}
    stream = StreamingResponse(lines, media_type="text/event-stream", headers=headers)
    return ApiAnswer(response=stream)
