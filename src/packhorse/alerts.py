# SPDX-License-Identifier: MIT
"""What alerts are made of: measures to compare, and where they are told.

from packhorse.alerts import Webhook, dead_letters, oldest_ready
app.alert("mail behind", oldest_ready > "5m", queue="mail", to=[Webhook("https://...")])
app.alert("dead letters", dead_letters.growth > 10, over="15m", to=[print])
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import smtplib
import urllib.request
from collections.abc import Callable, Sequence
from email.message import EmailMessage
from typing import Any, Final

import msgspec

from packhorse.core.clock import SystemClock
from packhorse.core.durations import Duration, microseconds
from packhorse.core.policies.alerts import AlertBound, AlertRule
from packhorse.errors import ConfigError

__all__ = [
    "ALERT_KIND",
    "ALERT_QUEUE",
    "DELIVER_TASK",
    "AlertDeclaration",
    "AlertNotice",
    "Condition",
    "Destination",
    "Email",
    "Measure",
    "Slack",
    "Webhook",
    "dead_letters",
    "depth",
    "failure_rate",
    "late_schedules",
    "oldest_ready",
    "open_breakers",
    "signature_of",
    "store_latency",
    "workers",
]

#: The records that keep what is known of alerts, and what carries their notices.
ALERT_KIND: Final = "alert"
ALERT_QUEUE: Final = "alerts"
DELIVER_TASK: Final = "packhorse.deliver_alert"
_SECOND_US: Final = 1_000_000
_REQUEST_S: Final = 10.0
_HTTP_OK: Final = range(200, 300)


@dataclasses.dataclass(frozen=True, slots=True)
class Condition:
    """A measure beyond a bound."""

    measure: Measure
    bound: AlertBound

    def __str__(self) -> str:
        sign = (">" if self.bound.above else "<") + ("=" if self.bound.inclusive else "")
        return f"{self.measure.name} {sign} {self.measure.shown(self.bound.value)}"

    def __bool__(self) -> bool:
        raise ConfigError(f"{self} is a condition for app.alert(), not something that is so now")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Measure:
    """Something that can be measured of a store, and compared with a number or a duration."""

    name: str
    unit: str = ""  #: `s`: seconds, compared with durations too; `%`: a share
    of_queue: bool = False  #: it can be that of one queue
    over_window: bool = False  #: it is about what changed within `over`

    def __gt__(self, bound: Duration) -> Condition:
        return self._compared(bound, above=True)

    def __ge__(self, bound: Duration) -> Condition:
        return self._compared(bound, above=True, inclusive=True)

    def __lt__(self, bound: Duration) -> Condition:
        return self._compared(bound, above=False)

    def __le__(self, bound: Duration) -> Condition:
        return self._compared(bound, above=False, inclusive=True)

    @property
    def growth(self) -> Measure:
        """How much it has risen within the alert's `over`."""
        return dataclasses.replace(self, name=f"{self.name}.growth", over_window=True)

    def shown(self, value: float) -> str:
        """A value for people."""
        if self.unit == "%":
            return f"{value * 100:.1f} %"
        number = f"{value:.1f}".rstrip("0").rstrip(".")
        return f"{number} {self.unit}" if self.unit else number

    def _compared(self, bound: Duration, *, above: bool, inclusive: bool = False) -> Condition:
        if isinstance(bound, int | float) and not isinstance(bound, bool):
            value = float(bound)
        elif self.unit == "s":
            value = microseconds(bound, setting=self.name) / _SECOND_US
        else:
            raise ConfigError(f"{self.name} is compared with a number, not with {bound!r}")
        return Condition(self, AlertBound(above, value, inclusive))


#: How long the longest-waiting ready job has waited.
oldest_ready: Final = Measure("oldest_ready", "s", of_queue=True)
#: Jobs that wait.
depth: Final = Measure("depth", of_queue=True)
#: Dead letters; `dead_letters.growth` within the window.
dead_letters: Final = Measure("dead_letters", of_queue=True)
#: Share of the attempts within the window that failed, over all workers.
failure_rate: Final = Measure("failure_rate", "%", over_window=True)
#: Live workers, of a queue those that serve it.
workers: Final = Measure("workers", of_queue=True)
#: How long the schedule that is most overdue has been due.
late_schedules: Final = Measure("late_schedules", "s")
#: Circuit breakers that are open.
open_breakers: Final = Measure("open_breakers")
#: How long the store took to count its queues.
store_latency: Final = Measure("store_latency", "s")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AlertDeclaration:
    """What `app.alert` was given."""

    name: str
    measure: Measure
    rule: AlertRule
    queue: str
    over_us: int
    to: tuple[Destination, ...]

    @property
    def subject(self) -> str:
        """What is measured, for people."""
        return f"{self.measure.name} of {self.queue}" if self.queue else self.measure.name


class AlertNotice(msgspec.Struct, frozen=True, kw_only=True):
    """What is told of an alert."""

    alert: str
    state: str  #: `firing`, `cleared` or `test`
    text: str  #: in one sentence
    value: float | None = None
    queue: str = ""
    since: str = ""  #: since when it fires, in UTC


#: Told by calling it with a notice, or one of `Webhook`, `Slack` and `Email`.
Destination = Callable[[AlertNotice], object]


@dataclasses.dataclass(frozen=True, slots=True)
class Webhook:
    """A URL that takes a notice as JSON; with a secret, signed."""

    url: str
    secret: str = dataclasses.field(default="", repr=False)

    def __call__(self, notice: AlertNotice) -> None:
        """Post it; raise if that is not taken, so that its job is tried again."""
        body = msgspec.json.encode(notice)
        headers = {"Content-Type": "application/json", "User-Agent": "packhorse"}
        if self.secret:
            moment = SystemClock().now_us() // _SECOND_US
            headers["X-Packhorse-Signature"] = signature_of(self.secret, body, moment)
        _post(self.url, body, headers)


@dataclasses.dataclass(frozen=True, slots=True)
class Slack:
    """An incoming webhook of Slack, or of what takes the same: Mattermost, Rocket.Chat, Discord."""

    url: str = dataclasses.field(repr=False)

    def __call__(self, notice: AlertNotice) -> None:
        """Post its sentence."""
        _post(self.url, msgspec.json.encode({"text": notice.text}), {})


@dataclasses.dataclass(frozen=True, slots=True)
class Email:
    """A letter, by a server that takes it from here."""

    to: Sequence[str]
    sender: str
    host: str = "localhost"
    port: int = 25
    user: str = ""
    password: str = dataclasses.field(default="", repr=False)
    tls: bool = False

    def __call__(self, notice: AlertNotice) -> None:
        """Send it."""
        letter = EmailMessage()
        letter["From"], letter["To"] = self.sender, ", ".join(self.to)
        letter["Subject"] = f"[packhorse] {notice.alert}: {notice.state}"
        letter.set_content(notice.text)
        with smtplib.SMTP(self.host, self.port, timeout=_REQUEST_S) as server:
            if self.tls:
                server.starttls()
            if self.user:
                server.login(self.user, self.password)
            server.send_message(letter)


def signature_of(secret: str, body: bytes, moment: int) -> str:
    """`t=<seconds>,v1=<hex>`: HMAC-SHA256 of `<seconds>.<body>`; refuse what is old."""
    signed = hmac.new(secret.encode(), f"{moment}.".encode() + body, hashlib.sha256)
    return f"t={moment},v1={signed.hexdigest()}"


def _post(url: str, body: bytes, headers: dict[str, Any]) -> None:
    if not url.startswith(("https://", "http://")):
        raise ConfigError("an alert goes to a URL that begins with https:// or http://")
    request = urllib.request.Request(  # noqa: S310 - checked above
        url, body, {"Content-Type": "application/json", **headers}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=_REQUEST_S) as answer:  # noqa: S310 - as above
        if answer.status not in _HTTP_OK:
            raise OSError(f"the receiver answered {answer.status}")
