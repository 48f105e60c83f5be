# SPDX-License-Identifier: MIT
"""Alerts on every store, from a dead letter to a real HTTP server; and what decides about them."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from packhorse import ConfigError, Packhorse, RetryPolicy
from packhorse.alerts import (
    RULE_KIND,
    AlertNotice,
    Slack,
    Webhook,
    dead_letters,
    depth,
    failure_rate,
    oldest_ready,
    workers,
)
from packhorse.client import alerts as client_alerts
from packhorse.core.clock import SystemChance, SystemClock
from packhorse.core.policies.alerts import AlertBound, AlertRule, AlertState, judged
from packhorse.core.policies.records import Put, RecordId
from packhorse.runtime.services.alerts import AlertWatch
from packhorse.runtime.services.service import ServiceContext
from tests.stores.conftest import new_app, store_kind, store_url

__all__ = ["new_app", "store_kind", "store_url"]

ONCE = RetryPolicy(max_retries=0)


class Receiver:
    """A real HTTP server, and what it was sent."""

    def __init__(self) -> None:
        self.answers: list[int] = []  #: statuses of the next answers; then 200
        self.heard: list[tuple[dict[str, str], bytes]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.heard.append((dict(self.headers.items()), body))
                self.send_response(receiver.answers.pop(0) if receiver.answers else 200)
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/alerts"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def notices(self) -> list[Any]:
        return [json.loads(body) for _, body in self.heard]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


def watch(app: Packhorse, worker: str = "one") -> AlertWatch:
    context = ServiceContext(app.store, SystemClock(), SystemChance(), app.bus, worker)
    return AlertWatch(context, alerts=app._declared_alerts())


def look(app: Packhorse, worker: str = "one") -> None:
    asyncio.run(watch(app, worker).run_once())


def failing(app: Packhorse) -> Any:
    @app.task(retry=ONCE, queue="mail", name="fail")
    def fail() -> None:
        raise ValueError("as asked")

    return fail


@pytest.mark.req("S4-33", "S4-21", "S3-38")
def test_growth_of_dead_letters_reaches_the_webhook_signed_and_once(
    new_app: Callable[[], Packhorse], receiver: Receiver
) -> None:
    app = new_app()
    fail = failing(app)
    hook = Webhook(receiver.url, secret="pssst")
    app.alert("dead", dead_letters.growth > 1, queue="mail", to=hook, clear_after=0)
    app.store.migrate()
    look(app)
    for _ in range(3):
        fail.enqueue()
    app.run(burst=True)
    receiver.answers = [503]  # it is away for a moment: the notice is a job, and tried again

    look(app)
    look(app, "another")  # not on duty
    look(app)
    app.run(burst=True)

    headers, body = receiver.heard[-1]
    assert [notice["state"] for notice in receiver.notices()] == ["firing", "firing"]
    assert json.loads(body)["value"] == 3
    moment, _, signed = headers["X-Packhorse-Signature"].removeprefix("t=").partition(",v1=")
    wanted = hmac.new(b"pssst", f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
    assert signed == wanted
    (info,) = app.alerts.all()
    assert (info.state, info.value, info.condition) == ("firing", 3, "dead_letters.growth > 1")


def test_an_alert_is_silent_while_told_to_be_and_told_when_that_ends(receiver: Receiver) -> None:
    app = Packhorse("memory://")
    fail, told = failing(app), list[AlertNotice]()
    app.alert("waiting", depth >= 1, queue="mail", to=[told.append, Slack(receiver.url)])
    fail.using(delay="1h").enqueue()
    app.alerts.silence("waiting", "1h")

    look(app)
    app.run(burst=True)
    assert told == []
    assert app.alerts.all()[0].silenced_until is not None

    app.alerts.silence("waiting", 0)
    look(app)
    app.run(burst=True)
    assert [notice.state for notice in told] == ["firing"]
    assert receiver.notices() == [{"text": told[0].text}]
    assert app.alerts.test("waiting") == 2
    app.run(burst=True)
    assert told[-1].state == "test"


def test_a_rule_that_an_operator_wrote_down_is_judged_and_told_by_any_app(
    new_app: Callable[[], Packhorse], receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKHORSE_ALERT_SECRET", "pssst")
    app = new_app()
    fail = failing(app)
    app.store.migrate()
    app.alerts.add("waiting", "depth >= 2", queue="mail", to=[receiver.url], clear_after=0)
    fail.using(delay="1h").enqueue()
    look(app)
    assert [(one.state, one.source) for one in app.alerts.all()] == [("fine", "store")]
    app.alerts.add("waiting", "depth >= 1", queue="mail", to=[receiver.url], clear_after=0)
    receiver.answers = [503]

    look(app)
    app.run(burst=True)

    assert [notice["state"] for notice in receiver.notices()] == ["firing", "firing"]
    assert receiver.heard[-1][0]["X-Packhorse-Signature"].startswith("t=")
    app.alerts.silence("waiting", "1h")
    assert app.alerts.test("waiting") == 1
    app.alerts.remove("waiting")
    look(app)
    assert app.alerts.all() == ()


def test_an_option_that_does_not_exist_is_refused(new_app: Callable[[], Packhorse]) -> None:
    app = new_app()
    app.store.migrate()
    mistyped: Any = {"clear_afer": "5m"}

    with pytest.raises(ConfigError, match=r"alert 'deep': .* 'clear_afer'; did you mean"):
        app.alerts.add("deep", "depth >= 1", **mistyped)
    with pytest.raises(ConfigError, match=r"alert 'deep': .* 'clear_afer'; did you mean"):
        app.alert("deep", depth > 1, **mistyped)

    assert app.alerts.all() == ()


def test_a_rule_that_cannot_be_read_here_hides_no_other(
    new_app: Callable[[], Packhorse], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = new_app()
    app.store.migrate()
    for name in ("mailed", "posted"):
        to = "mailto:ops@example.com" if name == "mailed" else "https://example.com"
        app.alerts.add(name, "depth >= 1", to=[to])
    foreign = Put(RecordId(RULE_KIND, "", "foreign"), b'{"another": "shape"}')
    app.store.run(app.store.records.change((foreign,)))
    monkeypatch.setenv("PACKHORSE_SMTP", "this is no server")

    found = app.alerts.all()

    assert [(one.name, one.condition) for one in found] == [
        *(("foreign", ""), ("mailed", ""), ("posted", "depth >= 1"))
    ]


async def test_a_worker_looks_by_itself_and_tells_a_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(AlertWatch, "interval_s", 0.02)
    app = Packhorse("memory://")
    told = asyncio.Queue[AlertNotice]()
    loop = asyncio.get_running_loop()

    def tell(notice: AlertNotice) -> None:
        loop.call_soon_threadsafe(told.put_nowait, notice)

    app.alert("one works", workers > 0, to=tell)
    running = asyncio.create_task(app.arun(handle_signals=False))

    notice = await asyncio.wait_for(told.get(), 10)

    assert (notice.alert, notice.state, notice.value) == ("one works", "firing", 1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_the_rate_of_failures_is_that_of_the_window(new_app: Callable[[], Packhorse]) -> None:
    app = new_app()
    app.alert("failing", failure_rate > 0.5, over="1h")
    app.store.migrate()

    look(app)

    assert (app.alerts.all()[0].state, app.alerts.all()[0].value) == ("fine", 0)


S = 1_000_000
RULE = AlertRule(bound=AlertBound(above=True, value=5), hold_us=10 * S, clear_us=20 * S)


def story(rule: AlertRule, *values: float, state: AlertState | None = None) -> list[str | None]:
    """What is told at looks ten seconds apart."""
    told: list[str | None] = []
    state = state or AlertState()
    for number, value in enumerate(values):
        state, word = judged(state, rule, value, number * 10 * S)
        told.append(word)
    return told


def test_it_fires_once_it_has_held_and_clears_once_it_has_been_fine() -> None:
    assert story(RULE, 9, 1, 9, 9, 9, 1, 9, 1, 1, 1, 9) == [
        *(None, None, None, "firing", None, None, None, None, None, "cleared", None),
    ]


def test_it_is_told_again_while_it_lasts_where_that_is_asked_for() -> None:
    rule = AlertRule(bound=AlertBound(above=False, value=1), repeat_us=20 * S)

    assert story(rule, 0, 0, 0, 0, 2) == ["firing", None, "firing", None, "cleared"]


def test_what_was_silent_all_the_time_is_not_told_to_be_over() -> None:
    rule, silent = AlertRule(bound=AlertBound(above=True, value=5)), AlertState(silent_us=15 * S)

    assert story(rule, 9, 1, 1, state=silent) == [None, None, None]
    assert story(rule, 9, 9, 9, 1, state=silent) == [None, None, "firing", "cleared"]


def test_conditions_are_values_and_mistakes_are_refused() -> None:
    app = Packhorse("memory://")

    assert str(oldest_ready > "5m") == "oldest_ready > 300 s"
    with pytest.raises(ConfigError, match="not something that is so now"):
        bool(depth > 5)
    with pytest.raises(ConfigError, match="compared with a number"):
        depth > "5m"  # noqa: B015 - it raises
    with pytest.raises(ConfigError, match="is no condition"):
        app.alert("x", True)  # type: ignore[arg-type]  # as said
    with pytest.raises(ConfigError, match="not counted by queue"):
        app.alert("x", failure_rate > 0.5, queue="mail")
    with pytest.raises(ConfigError, match="there is no alert"):
        app.alerts.silence("gone", "1h")
    with pytest.raises(ConfigError, match="declares no alert"):
        app.alerts.test("gone")


def test_apps_that_share_a_store_judge_their_own_alerts_each(
    new_app: Callable[[], Packhorse],
) -> None:
    shop, mails = new_app(), new_app()
    shop.store.migrate()
    task = failing(shop)
    shop.alert("few", depth >= 1, queue="mail", to=print)
    mails.alert("many", depth >= 2, queue="mail", to=print)
    shop.alerts.add("stored", "depth >= 1", to=["mailto:ops@example.com"])
    for _ in range(2):
        task.enqueue()

    look(shop, "of the shop")
    look(shop, "of the shop, too")  # not on duty
    look(mails, "of the mails")

    states = {info.name: info.state for info in shop.alerts.all()}
    assert states == {"few": "firing", "many": "firing", "stored": "firing"}


def test_a_notice_waits_for_a_worker_of_the_app_that_declares_its_alert(
    new_app: Callable[[], Packhorse], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_alerts, "_ELSEWHERE", "100ms")
    shop, mails = new_app(), new_app()
    shop.store.migrate()
    told = list[AlertNotice]()
    shop.alert("few", depth >= 1, queue="mail", to=told.append)
    mails.alert("many", depth >= 9, queue="mail", to=print)
    failing(shop).using(delay="1h").enqueue()
    look(shop)

    mails.run(["alerts"], burst=True)
    assert told == []
    until = time.monotonic() + 20
    while not told and time.monotonic() < until:
        shop.run(["alerts"], burst=True)  # a burst does not wait for a job that was put back

    assert [notice.alert for notice in told] == ["few"]
