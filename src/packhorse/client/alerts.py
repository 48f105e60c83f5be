# SPDX-License-Identifier: MIT
"""Alerts of an app: declared in code, judged by its workers, silenced by operators.

app.alert("mail behind", oldest_ready > "5m", queue="mail", to=[Webhook("https://...")])
app.alerts.all()               and silence(name, "2h"), test(name); each has an a-twin
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec

from packhorse.alerts import (
    ALERT_KIND,
    ALERT_QUEUE,
    DELIVER_TASK,
    AlertDeclaration,
    AlertNotice,
    Condition,
    Destination,
)
from packhorse.batches.verbs import BatchVerbs
from packhorse.client.connection import Connection
from packhorse.core.clock import to_datetime
from packhorse.core.driving import adrive, drive
from packhorse.core.durations import Duration, microseconds, positive_microseconds
from packhorse.core.options import name_text
from packhorse.core.policies.alerts import AlertRule, AlertState
from packhorse.core.policies.records import Put, RecordId
from packhorse.core.policies.retry import RetryPolicy
from packhorse.errors import ConfigError
from packhorse.runtime.services.alerts import notice_jobs
from packhorse.signals import Reject
from packhorse.stores.plan import Plan
from packhorse.stores.records import RecordPage

__all__ = ["AlertInfo", "AlertVerbs", "Alerts"]

T = TypeVar("T")
_Asking = Generator[Plan[Any], Any, T]
_PAGE: Final = 500
#: How often a silence is tried again that a look came before.
_TRIES: Final = 20
#: A receiver that is away is tried for about an hour.
_RETRY: Final = RetryPolicy(max_retries=12, initial_delay="1s", max_delay="10m")


class AlertInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An alert, as it stands."""

    name: str
    state: str  #: `firing`, `pending`, `fine`, or `unknown` before the first look
    condition: str = ""  #: empty for one that this app does not declare
    queue: str = ""
    value: float | None = None  #: as it was last measured
    firing_since: datetime | None = None
    silenced_until: datetime | None = None


class AlertVerbs(BatchVerbs):
    """The verbs of an app that are about alerts."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._alerts: dict[str, AlertDeclaration] = {}

    @property
    def alerts(self) -> Alerts:
        """The alerts this app declares, and what the store knows of them."""
        return Alerts(self._connection, self._alerts)

    def alert(
        self,
        name: str,
        condition: Condition,
        /,
        *,
        queue: str = "",
        to: Destination | Iterable[Destination] = (),
        hold: Duration = 0,
        clear_after: Duration = "1m",
        repeat: Duration | None = None,
        over: Duration = "15m",
    ) -> None:
        """Tell `to` when the condition has held for `hold`, and when it is over.

        It is over once it has not held for `clear_after`. With `repeat` it is told again while it
        lasts. `over` is the window of growth and rates. Workers of this app look every ten seconds,
        one of them for all.
        """
        where = f"alert {name_text(name, 'the name of an alert')!r}"
        if not isinstance(condition, Condition):
            raise ConfigError(f"{where}: {condition!r} is no condition; write oldest_ready > '5m'")
        measure = condition.measure
        if queue and not measure.of_queue:
            raise ConfigError(f"{where}: {measure.name} is not counted by queue; leave queue= out")
        destinations = (to,) if callable(to) else tuple(to)
        for each in destinations:
            if not callable(each):
                raise ConfigError(f"{where}: {each!r} cannot be told; give a Webhook or a function")
        repeat_us = None
        if repeat is not None:
            repeat_us = positive_microseconds(repeat, setting=f"{where}: repeat")
        rule = AlertRule(
            bound=condition.bound,
            hold_us=microseconds(hold, setting=f"{where}: hold"),
            clear_us=microseconds(clear_after, setting=f"{where}: clear_after"),
            repeat_us=repeat_us,
        )
        if not self._alerts:
            self._declare_delivery()
        self._alerts[name] = AlertDeclaration(
            name=name,
            measure=measure,
            rule=rule,
            queue=queue,
            over_us=positive_microseconds(over, setting=f"{where}: over"),
            to=destinations,
        )

    def _declared_alerts(self) -> tuple[AlertDeclaration, ...]:
        return tuple(self._alerts.values())

    def _declare_delivery(self) -> None:
        @self.task(name=DELIVER_TASK, queue=ALERT_QUEUE, retry=_RETRY, timeout="30s")
        def deliver_alert(alert: str, destination: int, notice: AlertNotice) -> None:
            declared = self._alerts.get(alert)
            if declared is None or destination >= len(declared.to):
                raise Reject(f"this release has no alert {alert!r} with that destination")
            declared.to[destination](notice)


class Alerts:
    """What is known of alerts, and what operators do about them."""

    def __init__(self, connection: Connection, declared: Mapping[str, AlertDeclaration]) -> None:
        self._connection = connection
        self._declared = declared

    def all(self) -> tuple[AlertInfo, ...]:
        """Every alert that this app declares or the store knows, by name."""
        return drive(self._all(), self._connection.store.run)

    async def aall(self) -> tuple[AlertInfo, ...]:
        """As `all`, without blocking the event loop."""
        return await adrive(self._all(), (await self._connection.astore()).arun)

    def silence(self, name: str, span: Duration) -> None:
        """Tell nothing of an alert for so long; 0 ends that. What still fires then is told."""
        drive(self._silence(name, span), self._connection.store.run)

    async def asilence(self, name: str, span: Duration) -> None:
        """As `silence`, without blocking the event loop."""
        await adrive(self._silence(name, span), (await self._connection.astore()).arun)

    def test(self, name: str) -> int:
        """Submit a test notice to each destination of an alert; says how many there are."""
        return drive(self._test(name), self._connection.store.run)

    async def atest(self, name: str) -> int:
        """As `test`, without blocking the event loop."""
        return await adrive(self._test(name), (await self._connection.astore()).arun)

    def _all(self) -> _Asking[tuple[AlertInfo, ...]]:
        page: RecordPage = yield self._records.records(ALERT_KIND, limit=_PAGE)
        states = {
            record.id.key: msgspec.json.decode(record.document, type=AlertState)
            for record in page.records
        }
        names = sorted({*states, *self._declared})
        return tuple(self._info(name, states.get(name), page.now_us) for name in names)

    def _info(self, name: str, state: AlertState | None, now_us: int) -> AlertInfo:
        declared, known = self._declared.get(name), state or AlertState()
        word = "unknown" if known.value is None else "fine"
        if known.beyond_us is not None:
            word = "pending"
        if known.firing_us is not None:
            word = "firing"
        shown = None if declared is None else Condition(declared.measure, declared.rule.bound)
        return AlertInfo(
            name=name,
            state=word,
            condition="" if shown is None else str(shown),
            queue="" if declared is None else declared.queue,
            value=known.value,
            firing_since=None if known.firing_us is None else to_datetime(known.firing_us),
            silenced_until=to_datetime(known.silent_us) if known.silent_us > now_us else None,
        )

    def _silence(self, name: str, span: Duration) -> _Asking[None]:
        span_us = microseconds(span, setting="the length of a silence")
        named = RecordId(ALERT_KIND, "", name_text(name, "the name of an alert"))
        for _ in range(_TRIES):
            page: RecordPage = yield self._records.records(ALERT_KIND, limit=1)
            record = yield self._records.record(named)
            if record is None and name not in self._declared:
                raise ConfigError(f"there is no alert {name!r}; see 'packhorse alerts list'")
            state, version = AlertState(), 0
            if record is not None:
                state = msgspec.json.decode(record.document, type=AlertState)
                version = record.version
            state = msgspec.structs.replace(state, silent_us=page.now_us + span_us)
            changed = yield self._records.change([Put(named, msgspec.json.encode(state), version)])
            if changed.applied:
                return
        raise ConfigError(f"alert {name!r} is changed all the time; try again")

    def _test(self, name: str) -> _Asking[int]:
        declared = self._declared.get(name)
        if declared is None:
            raise ConfigError(f"this app declares no alert {name!r}; see 'packhorse alerts list'")
        text = f"{name}: a test; {declared.subject} was not looked at"
        notice = AlertNotice(alert=name, state="test", text=text, queue=declared.queue)
        jobs = notice_jobs(declared, notice)
        if jobs:
            yield self._connection.store.jobs.submit(jobs)
        return len(jobs)

    @property
    def _records(self) -> Any:
        return self._connection.store.records
