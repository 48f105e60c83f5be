# SPDX-License-Identifier: MIT
"""Alerts by mail, to a real server: encrypted, signed in, tried again, and no secret in a log."""

from __future__ import annotations

import logging
import smtplib
import ssl
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from packhorse import ConfigError, Packhorse
from packhorse.alerts import AlertNotice, Email, destination_of, workers
from tests.servers.redis import free_port
from tests.support.tls import Certificates

PASSWORD = "hunter2-of-the-mail"
NOTICE = AlertNotice(alert="mail is not served", state="firing", text="No worker serves mail.")


class Mailbox:
    """What a server was sent, and what it answers next."""

    def __init__(self) -> None:
        self.answers: list[str] = []
        self.letters: list[Any] = []
        self.encrypted: list[bool] = []

    async def handle_DATA(  # noqa: N802 - as the server calls it
        self, _server: SMTP, session: Session, envelope: Envelope
    ) -> str:
        if self.answers:
            return self.answers.pop(0)
        self.letters.append(message_from_bytes(envelope.content or b""))  # type: ignore[arg-type]  # as it came
        self.encrypted.append(session.ssl is not None)
        return "250 taken"


def authenticate(
    _server: SMTP, _session: Session, _envelope: Envelope, _kind: str, given: object
) -> AuthResult:
    fits = isinstance(given, LoginPassword) and given.password == PASSWORD.encode()
    return AuthResult(success=fits, handled=False)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox()


@pytest.fixture
def server(mailbox: Mailbox, certificates: Certificates) -> Iterator[Controller]:
    """A server that takes letters only encrypted, and only from those who sign in."""
    controller = Controller(
        mailbox,
        hostname="127.0.0.1",
        port=free_port(),
        tls_context=certificates.serving("127.0.0.1"),
        require_starttls=True,
        authenticator=authenticate,
        auth_required=True,
    )
    controller.start()
    yield controller
    controller.stop()


def to_ops(server: Controller, certificates: Certificates, password: str = PASSWORD) -> Email:
    return Email(
        ["ops@example.com"],
        "jobs@example.com",
        host="127.0.0.1",
        port=server.port,
        user="jobs",
        password=password,
        tls=True,
        certificates=str(certificates.authority_file),
    )


def test_a_letter_goes_encrypted_by_one_who_signed_in_and_is_tried_again(
    server: Controller,
    mailbox: Mailbox,
    certificates: Certificates,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    app = Packhorse("memory://")
    app.alert("mail is not served", workers < 1, to=to_ops(server, certificates))
    mailbox.answers = ["451 come again"]

    app.alerts.test("mail is not served")
    app.run(burst=True)

    (letter,) = mailbox.letters
    assert letter["To"] == "ops@example.com"
    assert letter["Subject"] == "[packhorse] mail is not served: test"
    assert mailbox.encrypted == [True]
    (job,) = app.insights.jobs().jobs
    assert job.attempts == 2
    assert PASSWORD not in caplog.text


def test_who_cannot_sign_in_or_is_not_trusted_sends_nothing_and_tells_no_secret(
    server: Controller, mailbox: Mailbox, certificates: Certificates, tmp_path: Path
) -> None:
    wrong = to_ops(server, certificates, f"not-{PASSWORD}")
    with pytest.raises(smtplib.SMTPAuthenticationError) as refused:
        wrong(NOTICE)
    elsewhere = Certificates(tmp_path / "elsewhere")
    with pytest.raises(ssl.SSLCertVerificationError):
        to_ops(server, elsewhere)(NOTICE)

    assert PASSWORD not in f"{refused.value} {wrong!r}"
    assert mailbox.letters == []


def test_mail_of_rules_that_operators_wrote_down_goes_by_the_environments_server(
    mailbox: Mailbox, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = certificates.serving("127.0.0.1")
    server = Controller(mailbox, hostname="127.0.0.1", port=free_port(), ssl_context=context)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority_file))
    monkeypatch.setenv("PACKHORSE_SMTP", f"smtps://127.0.0.1:{server.port}?from=jobs@example.com")
    server.start()
    try:
        destination_of("mailto:ops@example.com")(NOTICE)
    finally:
        server.stop()

    (letter,) = mailbox.letters
    assert (letter["From"], letter["To"]) == ("jobs@example.com", "ops@example.com")
    monkeypatch.setenv("PACKHORSE_SMTP", "mail.example.com")
    with pytest.raises(ConfigError, match="names no mail server"):
        destination_of("mailto:ops@example.com")
