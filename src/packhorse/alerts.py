# SPDX-License-Identifier: MIT
"""The parts of an alert: measures to compare, and destinations of notices.

from packhorse.alerts import Webhook, dead_letters, oldest_ready
app.alert("mail behind", oldest_ready > "5m", queue="mail", to=[Webhook("https://...")])
app.alert("dead letters", dead_letters.growth > 10, over="15m", to=[print])
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import os
import re
import ssl
import urllib.parse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from packhorse.core.clock import SystemClock, new_ids
from packhorse.core.durations import Duration, microseconds
from packhorse.core.job import NewJob, Priority
from packhorse.core.policies.alerts import AlertBound, AlertRule
from packhorse.errors import ConfigError

# Modules that send are imported when a notice is sent: few apps have alerts.
if TYPE_CHECKING:
    import smtplib

#: The kinds of records of alert states and of operators' rules; queue and task of notices.
ALERT_KIND: Final = "alert"
RULE_KIND: Final = "alert_rule"
ALERT_QUEUE: Final = "alerts"
DELIVER_TASK: Final = "packhorse.deliver_alert"
_SECOND_US: Final = 1_000_000
_REQUEST_S: Final = 10.0
_SECRET: Final = "PACKHORSE_ALERT_SECRET"  # noqa: S105 - its name
_SMTP: Final = "PACKHORSE_SMTP"
_SMTP_PORT, _SUBMISSION_PORT, _SMTPS_PORT = 25, 587, 465
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
    """A measure of a store, compared with a number or a duration."""

    name: str
    unit: str = ""  #: `s`: seconds, compared with durations too; `%`: a share
    of_queue: bool = False  #: it can be measured for one queue
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
        """The measure of how much it has risen within the alert's `over`."""
        return dataclasses.replace(self, name=f"{self.name}.growth", over_window=True)

    def shown(self, value: float) -> str:
        """Format a value."""
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


_MEASURES: Final = (
    *(oldest_ready, depth, dead_letters, failure_rate, workers),
    *(late_schedules, open_breakers, store_latency),
)
_COMPARED: Final = re.compile(r"\s*([a-z_]+(?:\.growth)?)\s*(>=|<=|>|<)\s*(\S+)\s*")


def condition_of(text: str) -> Condition:
    """Parse a condition that an operator wrote: `oldest_ready > 5m`."""
    found = _COMPARED.fullmatch(text)
    if found is None:
        raise ConfigError(f"{text!r} is no condition; write it as 'oldest_ready > 5m'")
    name, sign, bound = found.groups()
    known = {each.name: each for each in _MEASURES}
    measure = known.get(name.removesuffix(".growth"))
    if measure is None:
        raise ConfigError(f"there is no measure {name!r}; there are {', '.join(known)}")
    if name.endswith(".growth"):
        measure = measure.growth
    value: float | str = bound
    with contextlib.suppress(ValueError):
        value = float(bound)
    compare = {">": measure.__gt__, ">=": measure.__ge__, "<": measure.__lt__, "<=": measure.__le__}
    return compare[sign](value)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AlertDeclaration:
    """An alert, declared by `app.alert` or stored by an operator."""

    name: str
    measure: Measure
    rule: AlertRule
    queue: str
    over_us: int
    to: tuple[Destination, ...]
    stored: bool = False  #: an operator wrote it down

    @property
    def subject(self) -> str:
        """The measure and its queue, in words."""
        return f"{self.measure.name} of {self.queue}" if self.queue else self.measure.name

    def notice_jobs(self, notice: AlertNotice, queue: str) -> list[NewJob]:
        """Return the jobs that send a notice to each destination.

        Workers serve the alert queue only if their app declares alerts.
        """
        jobs = []
        for index, job_id in enumerate(new_ids(len(self.to))):
            arguments = {"alert": self.name, "destination": index, "notice": notice}
            payload, trace_id = msgspec.json.encode(arguments), job_id.replace("-", "")
            urgent = int(Priority.CRITICAL)
            jobs.append(
                NewJob(job_id, DELIVER_TASK, payload, queue, priority=urgent, trace_id=trace_id)
            )
        return jobs


class AlertNotice(msgspec.Struct, frozen=True, kw_only=True):
    """What a destination is sent about an alert."""

    alert: str
    state: str  #: `firing`, `cleared` or `test`
    text: str  #: in one sentence
    value: float | None = None
    queue: str = ""
    since: str = ""  #: since when it fires, in UTC


#: A function that is called with a notice, or one of `Webhook`, `Slack` and `Email`.
Destination = Callable[[AlertNotice], object]


@dataclasses.dataclass(frozen=True, slots=True)
class Webhook:
    """A URL that takes a notice as JSON; with a secret, signed."""

    url: str
    secret: str = dataclasses.field(default="", repr=False)

    def __call__(self, notice: AlertNotice) -> None:
        """Post it; raise if the receiver refuses it, so that its job is retried."""
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
    """A mail, sent through an SMTP server."""

    to: Sequence[str]
    sender: str
    host: str = "localhost"
    port: int = 25
    user: str = ""
    password: str = dataclasses.field(default="", repr=False)
    tls: bool | Literal["implicit"] = False  #: by STARTTLS, or from the beginning
    certificates: str | None = None  #: a file of those to trust instead of the system's

    def __call__(self, notice: AlertNotice) -> None:
        """Send it."""
        from email.message import EmailMessage  # noqa: PLC0415 - see above

        letter = EmailMessage()
        letter["From"], letter["To"] = self.sender, ", ".join(self.to)
        letter["Subject"] = f"[packhorse] {notice.alert}: {notice.state}"
        letter.set_content(notice.text)
        with self._connected() as server:
            if self.user:
                server.login(self.user, self.password)
            server.send_message(letter)

    def _connected(self) -> smtplib.SMTP:
        """Connect to the server, and check its certificate if the connection is encrypted."""
        import smtplib  # noqa: PLC0415 - see above

        if not self.tls:
            return smtplib.SMTP(self.host, self.port, timeout=_REQUEST_S)
        trusted = ssl.create_default_context(cafile=self.certificates)
        if self.tls == "implicit":
            return smtplib.SMTP_SSL(self.host, self.port, timeout=_REQUEST_S, context=trusted)
        server = smtplib.SMTP(self.host, self.port, timeout=_REQUEST_S)
        try:
            server.starttls(context=trusted)
        except BaseException:
            server.close()
            raise
        return server


def destination_of(text: str) -> Destination:
    """Parse a destination of an operator: a URL, `slack:` and a URL, or `mailto:` an address.

    Secrets stay out of the store: webhooks are signed with PACKHORSE_ALERT_SECRET, and mail is sent
    by PACKHORSE_SMTP, such as smtps://user:password@mail.example.com?from=jobs@example.com;
    at port 587 it is encrypted too.
    """
    kind, _, rest = text.partition(":")
    match kind:
        case "https" | "http":
            return Webhook(text, os.environ.get(_SECRET, ""))
        case "slack" if rest.startswith(("https://", "http://")):
            return Slack(rest)
        case "mailto" if "@" in rest:
            return _mail_to(rest)
    raise ConfigError(
        f"{kind!r} is no place to tell an alert; give a URL, slack:URL or mailto:ADDRESS"
    )


def _mail_to(address: str) -> Email:
    server = urllib.parse.urlsplit(os.environ.get(_SMTP, "smtp://localhost"))
    if server.scheme not in ("smtp", "smtps") or not server.hostname:
        raise ConfigError(f"{_SMTP} names no mail server; write smtp://HOST or smtps://HOST")
    given = dict(urllib.parse.parse_qsl(server.query))
    secure = server.scheme == "smtps"
    return Email(
        [address],
        given.get("from", f"packhorse@{server.hostname}"),
        host=server.hostname,
        port=server.port or (_SMTPS_PORT if secure else _SMTP_PORT),
        user=urllib.parse.unquote(server.username or ""),
        password=urllib.parse.unquote(server.password or ""),
        tls="implicit" if secure else server.port == _SUBMISSION_PORT,
    )


class StoredAlert(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rule that an operator has stored."""

    condition: str
    queue: str = ""
    to: tuple[str, ...] = ()
    hold_us: int = 0
    clear_us: int = 0
    repeat_us: int | None = None
    over_us: int = 0

    def declaration(self, name: str) -> AlertDeclaration:
        """Return the alert as `app.alert` would have declared it."""
        condition = condition_of(self.condition)
        rule = AlertRule(
            bound=condition.bound,
            hold_us=self.hold_us,
            clear_us=self.clear_us,
            repeat_us=self.repeat_us,
        )
        return AlertDeclaration(
            name=name,
            measure=condition.measure,
            rule=rule,
            queue=self.queue,
            over_us=self.over_us,
            to=tuple(destination_of(each) for each in self.to),
            stored=True,
        )


read_rule: Final = msgspec.json.Decoder(StoredAlert).decode


def signature_of(secret: str, body: bytes, moment: int) -> str:
    """`t=<seconds>,v1=<hex>`: HMAC-SHA256 of `<seconds>.<body>`; refuse what is old."""
    signed = hmac.new(secret.encode(), f"{moment}.".encode() + body, hashlib.sha256)
    return f"t={moment},v1={signed.hexdigest()}"


def _post(url: str, body: bytes, headers: dict[str, Any]) -> None:
    import urllib.request  # noqa: PLC0415 - see above

    if not url.startswith(("https://", "http://")):
        raise ConfigError("an alert goes to a URL that begins with https:// or http://")
    request = urllib.request.Request(  # noqa: S310 - checked above
        url, body, {"Content-Type": "application/json", **headers}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=_REQUEST_S) as answer:  # noqa: S310 - as above
        if answer.status not in _HTTP_OK:
            raise OSError(f"the receiver answered {answer.status}")
