# SPDX-License-Identifier: MIT
"""Who is known, by what, and who is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

from packhorse import ConfigError, Packhorse
from packhorse.client.tokens import Tokens
from packhorse.core.access import ROLES, Permission, Principal
from packhorse.testing import TestApp
from packhorse.web import web_app
from packhorse.web.access import AccessRules
from packhorse.web.calls import ApiAnswer, ApiCall, ApiRoute
from packhorse.web.serving import ApiServer
from tests.web.support import Web, cookie_name, declare, token
from tests.web.test_pages import form

PROXY = "10.1.2.3"
USER = {"x_forwarded_user": "ada"}


@pytest.fixture
def app(packhorse_app: TestApp) -> TestApp:
    declare(packhorse_app)
    return packhorse_app


async def status(web: Web, **headers: Any) -> int:
    return (await web.get("/jobs", **headers)).status


async def test_a_token_counts_until_it_is_revoked_or_has_expired(app: TestApp) -> None:
    tokens = Tokens(app.store)
    kept = tokens.create("kept", scopes=["viewer"])
    short = tokens.create("short", scopes=["viewer"], expires="1h")
    web = Web(app)

    assert [await status(web, token=one.text) for one in (kept, short)] == [200, 200]
    app.clock.advance(7_200)
    assert await status(web, token=short.text) == 401
    assert [one.name for one in await tokens.aall()] == ["kept"]
    assert await tokens.arevoke(kept.info.id)
    assert not tokens.revoke(kept.info.id)
    assert await status(web, token=kept.text) == 401


async def test_a_stream_ends_before_the_first_part_that_its_reader_may_not_have(
    app: TestApp,
) -> None:
    tokens = Tokens(app.store)
    made = tokens.create("reader", scopes=["viewer"])

    async def parts() -> AsyncIterator[bytes]:
        yield b"one"
        await tokens.arevoke(made.info.id)
        yield b"two"

    async def handler(_call: ApiCall) -> ApiAnswer:
        return ApiAnswer(response=StreamingResponse(parts()))

    route = ApiRoute("GET", "/", handler, Permission.JOBS_VIEW)
    endpoint = ApiServer(app, AccessRules(), 1).endpoint(route)
    web = Web(app)
    web.served = Starlette(routes=[Route("/", endpoint)])

    assert (await web.ask("GET", "/", token=made.text)).body == b"one"


async def test_a_cookie_that_counts_no_more_is_taken_back_and_this_machine_let_in(
    app: TestApp,
) -> None:
    local = Web(app, {"loopback": True}, address="127.0.0.1")
    old = f"ph_{'0' * 16}_{'f' * 64}"
    name = cookie_name(host="localhost:8000")

    sent_away = await local.ask("GET", "/jobs", host="localhost:8000", cookie=f"{name}={old}")

    assert (sent_away.status, sent_away.headers["location"]) == (303, "/login")
    assert sent_away.headers["set-cookie"].startswith(f'{name}=""; ')
    assert "Max-Age=0; Path=/;" in sent_away.headers["set-cookie"]
    assert (await local.ask("GET", "/jobs", host="localhost:8000")).status == 200


async def test_who_may_not_see_the_overview_begins_with_the_jobs(app: TestApp) -> None:
    narrow, web = token(app, "jobs.view", "queues.pause"), Web(app)

    got = await web.ask("GET", "/", token=narrow)

    assert (got.status, got.headers["location"]) == (303, "/jobs")
    assert (await web.ask("GET", "/jobs", token=narrow)).status == 200


async def test_a_refusal_says_in_full_how_to_send_a_token(app: TestApp) -> None:
    refused = await Web(app).get("/jobs")

    assert "'packhorse tokens create'" in refused.json["detail"]
    assert "Authorization" in refused.json["detail"]
    assert "[redacted]" not in refused.json["detail"]


async def test_the_store_knows_no_secret(app: TestApp) -> None:
    made = Tokens(app.store).create("one", scopes=["admin"])

    page = app.store.run(app.store.records.records(None, limit=100))

    secret = made.text.rpartition("_")[2].encode()
    assert len(page.records) == 1
    assert all(secret not in record.document for record in page.records)


async def test_wrong_tokens_are_counted_and_then_none_is_looked_at(app: TestApp) -> None:
    web, good = Web(app), token(app, "viewer")
    wrong = f"{good[:-4]}0000" if not good.endswith("0000") else f"{good[:-4]}1111"

    tried = [await status(web, token=wrong) for _ in range(20)]

    assert tried == [401] * 20
    blocked = await web.get("/jobs", token=good)
    assert (blocked.status, blocked.code) == (429, "TOO_MANY_ATTEMPTS")
    assert blocked.headers["retry-after"] == "300"
    assert (await web.ask("GET", "/jobs", token=good)).headers["retry-after"] == "300"
    assert await status(Web(app, address="203.0.113.10"), token=good) == 200
    app.clock.advance(360)
    assert await status(web, token=good) == 200


@pytest.mark.parametrize(
    "text", ["", "ph_", "x" * 500, "ph_0123456789abcdef_\x00", "ph_" + "0" * 16 + "_" + "f" * 64]
)
async def test_what_is_no_token_is_no_user(app: TestApp, text: str) -> None:
    assert await status(Web(app), token=text or " ") == 401


async def test_a_proxy_names_the_user_only_if_its_address_is_trusted(app: TestApp) -> None:
    options = {"proxies": ["10.0.0.0/8"], "proxy_roles": {"ada": "operator"}}
    trusted = Web(app, options, address=PROXY)
    stranger = Web(app, options, address="203.0.113.9")

    assert await status(trusted, **USER) == 200
    assert await status(trusted, x_forwarded_user="eve") == 401
    assert await status(trusted) == 401
    assert await status(stranger, **USER) == 401
    assert (await trusted.get("/audit", **USER)).status == 403
    same = {"sec_fetch_site": "same-origin"}
    done = await trusted.post("/jobs", {"task": "add", "args": [1, 2]}, **USER, **same)
    assert done.status == 201


async def test_a_trusted_proxy_is_believed_about_where_a_request_comes_from(app: TestApp) -> None:
    admin = token(app, "admin")
    options = {"proxies": ["10.0.0.0/8"]}
    hops = {"x_forwarded_for": "192.0.2.66, 198.51.100.7, 10.9.9.9"}
    order = {"task": "add", "args": [1, 2]}

    await Web(app, options, admin, PROXY).post("/jobs", order, **hops)
    await Web(app, options, admin, "203.0.113.9").post("/jobs", order, **hops)

    direct, proxied = (await Web(app, token=admin).get("/audit")).json["notes"]
    assert (proxied["source"], direct["source"]) == ("198.51.100.7", "203.0.113.9")


async def test_the_host_application_decides_with_its_hook(app: TestApp) -> None:
    async def authorize(request: Any) -> Principal | str | None:
        user: str | None = request.headers.get("x-user")
        if user == "ada":
            return Principal(name="ada", permissions=ROLES["admin"], tenant="mine")
        return user

    web = Web(app, {"authorize": authorize})

    assert await status(web, x_user="viewer") == 200
    assert await status(web) == 401
    assert (await web.get("/queues", x_user="ada")).code == "OTHER_TENANT"
    cross = await web.post("/jobs", {"task": "add"}, x_user="operator", origin="http://evil")
    assert cross.code == "CROSS_SITE"


@pytest.mark.parametrize(
    "said",
    [
        *("emperor", "", True, 7, {"name": "ada"}, ["admin"], object()),
        Principal(name="ada", permissions="admin jobs.view"),  # type: ignore[arg-type]
        Principal(name="ada", permissions=frozenset({"king"})),  # type: ignore[arg-type]
        Principal(name="ada", permissions=ROLES["admin"], tenant=7),  # type: ignore[arg-type]
        Principal(name=None, permissions=ROLES["admin"]),  # type: ignore[arg-type]
    ],
    ids=[
        *("no-role", "empty", "true", "number", "dict", "list", "object"),
        *("text-of-permissions", "unknown-permission", "tenant", "name"),
    ],
)
async def test_a_hook_that_gives_no_answer_lets_no_one_in_and_is_named_in_the_log(
    app: TestApp, said: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def who_is_it(_request: Any) -> Any:
        return said

    web = Web(app, {"authorize": who_is_it, "loopback": True}, address="127.0.0.1")
    here: dict[str, Any] = {"host": "127.0.0.1:8000"}

    asked = [await web.get("/jobs", **here), await web.post("/jobs", {"task": "add"}, **here)]
    pages = [await web.ask("GET", "/jobs", **here), await form(web, "/do/queues/a/pause", **here)]

    assert [got.status for got in (*asked, *pages)] == [500] * 4
    assert {got.code for got in asked} == {"UNEXPECTED"}
    assert (await app.insights.ajobs()).jobs == ()
    told = [record.getMessage() for record in caplog.records if record.name == "packhorse.web"]
    assert len(told) == 4
    for words in (__name__, "who_is_it", "packhorse.web.Principal", "'operator'", "None"):
        assert all(words in line for line in told), words
    assert not [line for line in told if "emperor" in line or "king" in line]


async def test_dashboards_on_two_ports_or_paths_of_a_host_do_not_sign_each_other_out() -> None:
    hosts, roots = ("a.example:8000", "a.example:8001", "a.example:8000"), ("", "", "/ops")
    webs = [Web(Packhorse("memory://"), root_path=root) for root in roots]
    jar = {}  # as a browser keeps them: by name, for all ports of the host
    names = []
    for web, host in zip(webs, hosts, strict=True):
        sent = f"token={token(web.app, 'viewer')}"
        entered = await form(web, "/login", sent, host=host, origin=f"http://{host}")
        name, _, value = entered.headers["set-cookie"].split(";")[0].partition("=")
        names.append(name)
        jar[name] = value
    cookie = "; ".join(f"{name}={value}" for name, value in jar.items())

    shown = [
        await web.ask("GET", "/jobs", host=host, cookie=cookie)
        for web, host in zip(webs, hosts, strict=True)
    ]
    out = await form(webs[0], "/logout", host=hosts[0], origin=f"http://{hosts[0]}", cookie=cookie)

    assert [got.status for got in shown] == [200] * 3
    assert len(set(names)) == 3
    assert out.headers["set-cookie"].startswith(f'{names[0]}=""; ')


async def test_this_machine_is_believed_only_where_that_was_switched_on(app: TestApp) -> None:
    here: dict[str, Any] = {"host": "127.0.0.1:8000"}
    order = {"task": "add", "args": [1, 2]}
    opened = Web(app, {"loopback": True}, address="127.0.0.1")

    assert await status(opened, **here) == 200
    assert (await opened.post("/jobs", order, **here)).status == 201
    assert await status(opened, host="localhost") == 200
    assert await status(opened, host="[::1]:8000") == 200
    assert await status(opened, host="evil.example") == 401  # a name that was rebound
    assert await status(opened, x_forwarded_for="203.0.113.9", **here) == 401
    assert await status(Web(app, {"loopback": True}), **here) == 401
    assert await status(Web(app, address="127.0.0.1"), **here) == 401
    cross = await opened.post("/jobs", order, origin="http://evil.example", **here)
    assert cross.code == "CROSS_SITE"
    own = await opened.post("/jobs", order, origin="http://127.0.0.1:8000", **here)
    assert own.status == 201


@pytest.mark.parametrize(
    "options",
    [{"proxies": ["nowhere"]}, {"proxy_role": "king"}, {"proxy_roles": {"a": "b"}}],
)
def test_rules_that_cannot_work_are_refused(app: TestApp, options: Any) -> None:
    with pytest.raises(ConfigError):
        web_app(app, **options)


async def test_what_was_done_is_forgotten_after_its_retention(app: TestApp) -> None:
    web = Web(app, {"audit_days": 1}, token(app, "admin"))
    await web.post("/jobs", {"task": "add", "args": [1, 2]})

    assert len((await web.get("/audit")).json["notes"]) == 1
    app.clock.advance(90_000)
    assert (await web.get("/audit")).json["notes"] == []


async def test_it_may_be_mounted_below_a_path(app: TestApp) -> None:
    web = Web(app, token=token(app, "admin"), root_path="/ops")

    got = await web.post("/jobs", {"task": "add", "args": [1, 2]})

    assert got.headers["location"] == f"/ops/api/v1/jobs/{got.json['id']}"
    assert got.headers["content-security-policy"].startswith("default-src 'none'")
    assert got.headers["cache-control"] == "no-store"
