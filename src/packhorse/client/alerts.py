# SPDX-License-Identifier: MIT
"""Alerts of an app: declared in code or by operators, judged by its workers, and silenced.

app.alert("mail behind", oldest_ready > "5m", queue="mail", to=[Webhook("https://...")])
app.alerts.add("mail behind", "oldest_ready > 5m", queue="mail", to=["https://..."])
app.alerts.all()               and remove(name), silence(name, "2h"), test(name); all have a-twins
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, TypedDict, Unpack

import msgspec

from packhorse.alerts import (
    ALERT_KIND,
    ALERT_QUEUE,
    DELIVER_TASK,
    RULE_KIND,
    AlertDeclaration,
    AlertNotice,
    Condition,
    Destination,
    StoredAlert,
    condition_of,
    destination_of,
    read_rule,
)
from packhorse.client.registry import DEFAULT_QUEUE
from packhorse.client.schedules import ScheduleVerbs
from packhorse.client.store_access import Asks, Connection
from packhorse.core.clock import optional_datetime, to_datetime
from packhorse.core.durations import Duration, microseconds, positive_microseconds
from packhorse.core.generators import awaited, blocking
from packhorse.core.options import chosen_options, name_text
from packhorse.core.policies.alerts import AlertRule, AlertState, read_state
from packhorse.core.policies.records import Put, Record, RecordId, Remove
from packhorse.core.policies.retry import RetryPolicy
from packhorse.errors import ConfigError
from packhorse.signals import Reject, Snooze
from packhorse.stores.plan import Asking
from packhorse.stores.records import RecordStore, all_records, store_clock

#: How often a silence is tried again after a worker wrote the alert's state first.
_TRIES: Final = 20
#: Retries deliveries for about an hour.
_RETRY: Final = RetryPolicy(max_retries=12, initial_delay="1s", max_delay="10m")
#: How long the notice of an alert that this app does not know waits for a worker of another app,
#: and how often.
_ELSEWHERE: Final = "3s"
_ELSEWHERE_MAX: Final = 100


class AlertInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An alert and its present state."""

    name: str
    state: str  #: `firing`, `pending`, `fine`, or `unknown` before the first look
    condition: str = ""  #: empty for one that this app does not declare, or cannot read
    queue: str = ""
    source: str = ""  #: `code` or `store`, where its rule stands; empty if neither here
    value: float | None = None  #: as it was last measured
    firing_since: datetime | None = None
    silenced_until: datetime | None = None


class AlertVerbs(ScheduleVerbs):
    """The verbs of an app that are about alerts."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._alerts: dict[str, AlertDeclaration] = {}
        self._delivers = False

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
        to: Destination | Iterable[Destination] = (),
        **options: Unpack[AlertOptions],
    ) -> None:
        """Notify `to` when the condition has held for `hold`, and when it is over.

        It is over once it has not held for `clear_after`. With `repeat`, notify again while it
        lasts. `over` is the window of growth and rates. One worker of this app checks every ten
        seconds, for all of them.
        """
        destinations = (to,) if callable(to) else tuple(to)
        declared = _checked(name, condition, destinations, options)
        self._declare_delivery()
        self._alerts[name] = declared

    def _declared_alerts(self) -> tuple[AlertDeclaration, ...]:
        self._declare_delivery()  # operators may add rules while the worker runs
        return tuple(self._alerts.values())

    def _declare_delivery(self) -> None:
        if self._delivers:
            return
        self._delivers = True

        @self.task(
            name=DELIVER_TASK,
            queue=ALERT_QUEUE,
            retry=_RETRY,
            timeout="30s",
            max_snoozes=_ELSEWHERE_MAX,
        )
        def deliver_alert(alert: str, destination: int, notice: AlertNotice) -> None:
            declared = self._alerts.get(alert) or self._connection.drive(
                _stored_rule(alert, self._connection.store.records)
            )
            if declared is None:  # another app of the store declares it, and has workers too
                raise Snooze(_ELSEWHERE)
            if destination >= len(declared.to):
                raise Reject(f"there is no alert {alert!r} with that destination any more")
            declared.to[destination](notice)


class AlertOptions(TypedDict, total=False):
    """Options of an alert; `AlertVerbs.alert` says what each means."""

    queue: str  #: all of them, unless it is given
    hold: Duration  #: 0
    clear_after: Duration  #: 1 min
    repeat: Duration | None
    over: Duration  #: 15 min


def _checked(
    name: str, condition: Condition, to: tuple[Destination, ...], given: AlertOptions
) -> AlertDeclaration:
    """Check an alert that code declares or an operator adds."""
    where = f"alert {name_text(name, 'the name of an alert')!r}"
    if not isinstance(condition, Condition):
        raise ConfigError(f"{where}: {condition!r} is no condition; write oldest_ready > '5m'")
    options = chosen_options(given, AlertOptions, where)
    measure, queue, repeat = condition.measure, options.get("queue", ""), options.get("repeat")
    if queue and not measure.of_queue:
        raise ConfigError(f"{where}: {measure.name} is not counted by queue; leave queue= out")
    for each in to:
        if not callable(each):
            raise ConfigError(f"{where}: {each!r} cannot be told; give a Webhook or a function")
    repeat_us = None
    if repeat is not None:
        repeat_us = positive_microseconds(repeat, setting=f"{where}: repeat")
    rule = AlertRule(
        bound=condition.bound,
        hold_us=microseconds(options.get("hold", 0), setting=f"{where}: hold"),
        clear_us=microseconds(options.get("clear_after", "1m"), setting=f"{where}: clear_after"),
        repeat_us=repeat_us,
    )
    over_us = positive_microseconds(options.get("over", "15m"), setting=f"{where}: over")
    return AlertDeclaration(
        name=name, measure=measure, rule=rule, queue=queue, over_us=over_us, to=to
    )


def _stored_rule(name: str, records: RecordStore) -> Asking[AlertDeclaration | None]:
    record = yield records.record(RecordId(RULE_KIND, "", name))
    if record is None:
        return None
    return read_rule(record.document).declaration(name)


class Alerts(Asks):
    """The alerts of an app and its store, to look at, add, remove and silence."""

    def __init__(self, connection: Connection, declared: Mapping[str, AlertDeclaration]) -> None:
        super().__init__(connection)
        self._declared = declared

    @blocking
    def all(self) -> Asking[tuple[AlertInfo, ...]]:
        """Every alert that this app declares or the store knows, by name."""
        page = yield from all_records(self._records, ALERT_KIND)
        states = {record.id.key: read_state(record.document) for record in page.records}
        kept = yield from all_records(self._records, RULE_KIND)
        written = {record.id.key: _readable(record) for record in kept.records}
        every = {**written, **self._declared}
        return tuple(
            _info(name, every.get(name), states.get(name), page.now_us)
            for name in sorted({*states, *every})
        )

    aall = awaited(all)  # noqa: A003 - the verb above

    @blocking
    def add(
        self, name: str, condition: str, *, to: Iterable[str] = (), **options: Unpack[AlertOptions]
    ) -> Asking[None]:
        """Store a rule, or change it; workers use it from their next check on."""
        texts = tuple(to)
        if name in self._declared:
            raise ConfigError(f"alert {name!r} is declared in code; change it there")
        compared = condition_of(condition)
        checked = _checked(name, compared, tuple(map(destination_of, texts)), options)
        rule = StoredAlert(
            condition=condition,
            queue=checked.queue,
            to=texts,
            hold_us=checked.rule.hold_us,
            clear_us=checked.rule.clear_us,
            repeat_us=checked.rule.repeat_us,
            over_us=checked.over_us,
        )
        # No version: the last writer wins.
        put = Put(RecordId(RULE_KIND, "", name), msgspec.json.encode(rule))
        yield self._records.change([put])

    aadd = awaited(add)

    @blocking
    def remove(self, name: str) -> Asking[None]:
        """Remove a stored rule and its state."""
        if (yield from _stored_rule(name, self._records)) is None:
            why = "declared in code; remove it there" if name in self._declared else "not there"
            raise ConfigError(f"alert {name!r} is {why}; see 'packhorse alerts list'")
        kinds = (RULE_KIND, ALERT_KIND)
        yield self._records.change([Remove(RecordId(kind, "", name)) for kind in kinds])

    aremove = awaited(remove)

    @blocking
    def silence(self, name: str, span: Duration) -> Asking[None]:
        """Send no notices of an alert for so long; 0 ends that. If it still fires then, notify."""
        span_us = microseconds(span, setting="the length of a silence")
        named = RecordId(ALERT_KIND, "", name_text(name, "the name of an alert"))
        for _ in range(_TRIES):
            now_us = yield from store_clock(self._records)
            record = yield self._records.record(named)
            stored = yield from _stored_rule(name, self._records)
            if record is None and stored is None and name not in self._declared:
                raise ConfigError(f"there is no alert {name!r}; see 'packhorse alerts list'")
            state, version = AlertState(), 0
            if record is not None:
                state = read_state(record.document)
                version = record.version
            state = msgspec.structs.replace(state, silent_us=now_us + span_us)
            changed = yield self._records.change([Put(named, msgspec.json.encode(state), version)])
            if changed.applied:
                return
        raise ConfigError(f"alert {name!r} is changed all the time; try again")

    asilence = awaited(silence)

    @blocking
    def test(self, name: str) -> Asking[int]:
        """Submit a test notice to each destination of an alert; return their number."""
        declared = self._declared.get(name)
        if declared is None:
            declared = yield from _stored_rule(name, self._records)
        if declared is None:
            raise ConfigError(f"this app declares no alert {name!r}; see 'packhorse alerts list'")
        text = f"{name}: a test; {declared.subject} was not looked at"
        notice = AlertNotice(alert=name, state="test", text=text, queue=declared.queue)
        jobs = declared.notice_jobs(notice, ALERT_QUEUE if self._declared else DEFAULT_QUEUE)
        if jobs:
            yield self._connection.store.jobs.submit(jobs)
        return len(jobs)

    atest = awaited(test)

    @property
    def _records(self) -> RecordStore:
        return self._connection.store.records


def _readable(record: Record) -> AlertDeclaration | None:
    """Read a stored rule; None if this process cannot, which must not hide the other alerts."""
    try:
        return read_rule(record.document).declaration(record.id.key)
    except (ConfigError, msgspec.DecodeError):
        return None


def _info(
    name: str, declared: AlertDeclaration | None, state: AlertState | None, now_us: int
) -> AlertInfo:
    known = state or AlertState()
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
        source="" if declared is None else "store" if declared.stored else "code",
        value=known.value,
        firing_since=optional_datetime(known.firing_us),
        silenced_until=to_datetime(known.silent_us) if known.silent_us > now_us else None,
    )
