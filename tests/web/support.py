# SPDX-License-Identifier: MIT
"""An app behind its web application, asked in this process, and tokens to ask with."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
from starlette.requests import Request

from packhorse import Context, Packhorse, RetryPolicy
from packhorse.alerts import depth
from packhorse.client.tokens import Tokens
from packhorse.web import web_app
from packhorse.web.access import cookie_of

HOST = "jobs.example"
SECRET = "hunter2-and-more"


@dataclass(frozen=True, slots=True)
class Got:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def code(self) -> str:
        return str(self.json["code"])


@dataclass(slots=True)
class Web:
    """The web application of an app, and who sends requests."""

    app: Packhorse
    options: dict[str, Any] = field(default_factory=dict)
    token: str | None = None
    address: str = "203.0.113.9"
    root_path: str = ""
    served: Any = None

    def __post_init__(self) -> None:
        self.served = web_app(self.app, **self.options)

    async def ask(
        self,
        method: str,
        url: str,
        body: Any = None,
        *,
        token: str | None = "",
        raw: bytes | None = None,
        **headers: str,
    ) -> Got:
        """Send a request; `token` None sends none."""
        place = urlsplit(url)
        sent = {"host": HOST, **{n.replace("_", "-"): v for n, v in headers.items()}}
        bearer = self.token if token == "" else token
        if bearer is not None:
            sent["authorization"] = f"Bearer {bearer}"
        text = raw if raw is not None else b"" if body is None else msgspec.json.encode(body)
        if body is not None:
            sent.setdefault("content-type", "application/json")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": f"{self.root_path}{unquote(place.path)}",
            "raw_path": place.path.encode(),
            "root_path": self.root_path,
            "query_string": place.query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
            "client": (self.address, 50_000),
            "server": (HOST, 80),
        }
        return await _asked(self.served, scope, text)

    async def get(self, path: str, **more: Any) -> Got:
        return await self.ask("GET", f"/api/v1{path}", **more)

    async def post(self, path: str, body: Any = None, **more: Any) -> Got:
        return await self.ask("POST", f"/api/v1{path}", body, **more)


async def _asked(served: Any, scope: dict[str, Any], body: bytes) -> Got:
    parts: list[bytes] = []
    begun: dict[str, Any] = {}
    unread = [{"type": "http.request", "body": body, "more_body": False}]

    ended = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if unread:
            return unread.pop()
        await ended.wait()  # who asks stays until there is an answer
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            begun.update(message)
        else:
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                ended.set()

    await served(scope, receive, send)
    headers = {name.decode().lower(): value.decode() for name, value in begun["headers"]}
    return Got(begun["status"], headers, b"".join(parts))


def cookie_name(host: str = HOST) -> str:
    """The name of the cookie of a dashboard at a host."""
    headers = [(b"host", host.encode())]
    return cookie_of(Request({"type": "http", "headers": headers, "root_path": ""}))


def token(app: Packhorse, *scopes: str, tenant: str | None = None) -> str:
    return Tokens(app.store).create("test", scopes=scopes, tenant=tenant).text


async def groups(app: Packhorse, tenant: str = "") -> tuple[str, str]:
    """A batch and a workflow that have begun: their ids."""
    add, fail = app.tasks["add"], app.tasks["fail"]
    items = [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    own = app.tenant(tenant) if tenant else app
    batch = await own.abatch(add, items, id=f"{tenant}-import", batch_size=1)
    flow = own.workflow(f"{tenant}-order-17")
    first = flow.add(add.call(1, 2), name="first")
    flow.add(add.call(first.result, 1), name="second")
    flow.add(fail.call(), after=[first], name="bad")
    flow.add(add.call(1, 1), after=[flow.add(fail.call(), name="worse")], name="behind")
    return batch.id, (await flow.astart()).name


def declare(app: Packhorse) -> None:
    """Tasks that complete, die, wait for a signal and ask a person."""

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    @app.task(retry=RetryPolicy(max_retries=0))
    def fail(password: str = SECRET) -> None:
        raise ValueError(f"could not sign in: password={password}")

    @app.task
    def waits(ctx: Context) -> Any:
        return ctx.wait_for("go")

    app.topic("paid").subscribe(add)
    app.alert("behind", depth > 10, queue="default")
    app.schedule("nightly", add.call(1, 2), cron="0 3 * * *")
