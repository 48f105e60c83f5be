# SPDX-License-Identifier: MIT
"""What is shown of values and exception text by default, and by a hook of one's own."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from packhorse import Packhorse, RetryPolicy
from packhorse.core.redaction import REDACTED, redact_default, redacted, redacted_text
from packhorse.stores.memory import MemoryStore


@pytest.mark.req("S3-41")
@pytest.mark.parametrize(
    "name",
    [
        *("password", "Password", "db_password", "userPassword", "passwd", "token", "accessToken"),
        *("access_token", "secret", "client_secret", "authorization", "Authorization", "api_key"),
        *("apiKey", "x-api-key", "card_number", "cardNumber", "cvv", "pin", "iban", "cookie"),
        *("private_key", "session_id", "credentials", "passphrase"),
    ],
)
def test_values_of_secret_names_are_masked(name: str) -> None:
    assert redact_default({"a": [{name: "hunter2"}]}) == {"a": [{name: REDACTED}]}
    assert "hunter2" not in redact_default(f"it failed with {name}=hunter2, sorry")
    assert "hunter2" not in redact_default(f'{{"{name}": "hunter2 and more", "b": 1}}')


@pytest.mark.parametrize(
    "text",
    [
        *("Authorization: Bearer hunter2hunter2", "curl -H 'authorization: basic hunter2=='"),
        *("postgresql://ada:hunter2@db/shop", "jwt eyJhbGciOi.eyJzdWIi.hunter2"),
        *("password: 'hunter2 hunter2'", "token=>hunter2", "-----BEGIN PRIVATE KEY-----\nhunter2"),
    ],
)
def test_secrets_in_texts_are_masked(text: str) -> None:
    shown = redact_default(text)

    assert "hunter2" not in shown
    assert REDACTED in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abcdef123456", f"Authorization: {REDACTED}"),
        (
            "-H 'authorization: Basic YWRhOmh1bnRlcjI=', then",
            f"-H 'authorization: {REDACTED}', then",
        ),
        ("db_password=postgresql://ada:hunter2@db/shop;", f"db_password={REDACTED};"),
        ("[token=x-eyJhbGciOi.eyJzdWIi.hunter2]", f"[token={REDACTED}]"),
        ("Bearer abcdef123456", f"Bearer {REDACTED}"),
    ],
)
def test_a_secret_that_two_patterns_find_is_masked_once(text: str, shown: str) -> None:
    assert redact_default(text) == shown


@pytest.mark.parametrize("card", ["4111 1111 1111 1111", "4111-1111-1111-1111", "378282246310005"])
def test_numbers_of_cards_are_masked(card: str) -> None:
    assert redact_default(f"charged {card} twice") == f"charged {REDACTED} twice"
    assert redact_default(
        {"note": card, "number": int(card.replace(" ", "").replace("-", ""))}
    ) == {
        "note": REDACTED,
        "number": REDACTED,
    }


@pytest.mark.parametrize(
    "value",
    [
        *("no such file: /tmp/x", "KeyError: 'order'", "order 1234567890123456 is late", "passing"),
        *({"order": 17, "passenger": "ada", "keyboard": "de", "tokenizer": "bpe"}, [1, None, True]),
        *("01990a2f-7b1c-7000-8000-0123456789ab", 1_800_000_000_000_000, 2.5),
    ],
)
def test_what_is_no_secret_stays(value: Any) -> None:
    assert redact_default(value) == value


def test_long_values_are_cut_and_deep_ones_end() -> None:
    deep: Any = []
    for _ in range(10_000):
        deep = [deep]

    assert redact_default({"text": "x" * 600}) == {"text": "x" * 500 + "… 100 characters more"}
    assert redact_default("x" * 600) == "x" * 600  # a text by itself has bounds of its own
    assert "…" in str(redact_default(deep))


def test_a_hook_that_fails_shows_nothing() -> None:
    def fails(value: Any) -> Any:
        raise ValueError(value)

    assert "hunter2" not in str(redacted(fails, {"a": "hunter2"}))
    assert redacted_text(lambda _value: 7, "hunter2") == "7"


@pytest.mark.req("S3-40", "S3-41")
@pytest.mark.parametrize("mask", [REDACTED, "***"])
def test_exception_text_is_masked_before_it_is_stored_and_logged(
    mask: str, caplog: pytest.LogCaptureFixture
) -> None:
    def own(value: Any) -> Any:
        return str(value).replace("hunter2", mask)

    app = Packhorse(store=MemoryStore(), redact=None if mask == REDACTED else own)

    @app.task(retry=RetryPolicy(max_retries=0))
    def login(password: str) -> None:
        raise ValueError(f"login failed with password={password}")

    @app.on("job.dead")
    def observe(_event: object) -> None:
        raise ValueError("token=hunter2")

    with caplog.at_level(logging.DEBUG, logger="packhorse"):
        job = login.enqueue("hunter2")
        app.run(burst=True)

    error = job.info().error
    assert error is not None
    assert error.message == f"login failed with password={mask}"
    assert error.stack is not None
    assert "hunter2" not in error.stack
    logged = [logging.Formatter().format(record) for record in caplog.records]
    assert any("login is dead" in line for line in logged)
    assert "hunter2" not in "".join(logged)
