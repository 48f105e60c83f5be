# SPDX-License-Identifier: MIT
"""Names are bounded where they are declared or submitted, so that every store takes the same."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse import ConfigError, Packhorse
from packhorse.core.keys import KEY_LENGTH_MAX
from packhorse.runtime.consumer.consumer import consumer_settings

LONG = "x" * (KEY_LENGTH_MAX + 1)
#: Four bytes each in UTF-8, which no store can take more of in an index.
LONGEST = "\N{PILE OF POO}" * KEY_LENGTH_MAX
TOO_LONG = f"has {KEY_LENGTH_MAX + 1} characters, and {KEY_LENGTH_MAX} are allowed"
WIRE = {"id": "018f2f3e-0000-7000-8000-000000000001", "type": "send_email", "payload": {}}


def plain() -> None: ...


@pytest.fixture
def app() -> Packhorse:
    return Packhorse("memory://")


@pytest.mark.parametrize("option", ["queue", "tenant", "tags", "job_id", "trace_id"])
def test_an_option_of_a_call_that_is_too_long_is_refused(app: Packhorse, option: str) -> None:
    work = app.task(plain)

    def chosen(text: str) -> dict[str, Any]:
        return {option: ["short", text] if option == "tags" else text}

    with pytest.raises(ConfigError, match=f"{option}.* {TOO_LONG}"):
        work.using(**chosen(LONG))
    with pytest.raises(ConfigError, match=f"{option}.* {TOO_LONG}"):
        work.call().using(**chosen(LONG))
    work.using(**chosen(LONGEST)).enqueue()


def test_what_a_declaration_names_is_bounded(app: Packhorse) -> None:
    with pytest.raises(ConfigError, match=f"the name of a queue {TOO_LONG}"):
        app.queue(LONG)
    with pytest.raises(ConfigError, match=f"dead_letter {TOO_LONG}"):
        app.queue("mail", dead_letter=LONG)
    with pytest.raises(ConfigError, match=f"queue {TOO_LONG}"):
        app.task(queue=LONG)(plain)
    with pytest.raises(ConfigError, match=f"name {TOO_LONG}"):
        app.task(name=LONG)(plain)
    with pytest.raises(ConfigError, match=f"tenant {TOO_LONG}"):
        app.tenant(LONG)
    with pytest.raises(ConfigError, match=f"the name of a queue {TOO_LONG}"):
        app.set_limits(LONG, concurrency=1)


@pytest.mark.parametrize("field", ["id", "type", "queue"])
def test_a_wire_task_is_bounded_as_calls_are(app: Packhorse, field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} {TOO_LONG}"):
        app.submit({**WIRE, field: "x" * (KEY_LENGTH_MAX + 1)})


def test_the_tags_of_a_wire_task_are_bounded(app: Packhorse) -> None:
    with pytest.raises(ConfigError, match=f"tags.* {TOO_LONG}"):
        app.submit({**WIRE, "metadata": {"tags": [LONG]}})


@pytest.mark.parametrize("setting", ["queues", "tenants"])
def test_what_a_consumer_serves_is_bounded(setting: str) -> None:
    given: dict[str, Any] = {"queues": ["mail"], "tenants": None, setting: [LONG]}
    queues = given.pop("queues")
    with pytest.raises(ConfigError, match=f"{setting}.* {TOO_LONG}"):
        consumer_settings(queues, None, lease="30s", default_timeout="5m", **given)


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31m", "a\x7f", "\x85"])
def test_a_queue_has_no_control_characters_in_its_name(app: Packhorse, name: str) -> None:
    work = app.task(plain)

    for declare in (
        lambda: app.queue(name),
        lambda: work.using(queue=name),
        lambda: app.task(queue=name)(plain),
        lambda: app.submit({**WIRE, "queue": name}),
        lambda: consumer_settings([name], None, lease="30s", default_timeout="5m"),
    ):
        with pytest.raises(ConfigError, match="control characters"):
            declare()


def test_a_queue_may_have_commas_colons_and_spaces_in_its_name(app: Packhorse) -> None:
    work = app.task(plain)

    app.queue("eu: a, b")
    assert work.using(queue="eu: a, b").enqueue().info().queue == "eu: a, b"
