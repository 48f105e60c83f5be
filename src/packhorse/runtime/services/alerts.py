# SPDX-License-Identifier: MIT
"""Judge alerts: every worker looks, the one on duty judges, and record versions decide.

Notices go out as jobs, submitted in the change that notes the alert's new state. So each is sent
once over the fleet, even if workers die, and retried like any job while its receiver is down.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from packhorse.alerts import (
    ALERT_KIND,
    ALERT_QUEUE,
    DELIVER_TASK,
    RULE_KIND,
    AlertDeclaration,
    AlertNotice,
    read_rule,
)
from packhorse.breaker import BREAKER_KIND, breaker_info
from packhorse.client.registry import DEFAULT_QUEUE
from packhorse.core.clock import SECOND_US, to_datetime
from packhorse.core.generators import adrive
from packhorse.core.job import WAITING, JobStatus
from packhorse.core.keys import digest
from packhorse.core.policies.alerts import AlertState, grown, judged, read_state, sampled
from packhorse.core.policies.records import Put, Record, RecordId
from packhorse.core.schedules import SCHEDULE_KIND
from packhorse.errors import ConfigError
from packhorse.runtime.services.service import OFF_DUTY_S, Duty, Service, ServiceContext
from packhorse.stores.records import all_records
from packhorse.stores.requests import Counts, JobFilter, WorkerRecord

_PAGE: Final = 500
#: Jobs that are read to find the notices among them.
_NOTICES_MOST: Final = 5_000
#: Characters of a digest that tell the alerts of one app from those of another.
_NAMES_LENGTH: Final = 16
#: Workers whose totals are compared; those beyond do not count.
_WORKERS_MAX: Final = 500
_BREAKER_OPEN: Final = "open"
#: How often a worker looks for rules where there are none.
_NO_RULES_S: Final = 30.0
_LOG: Final = logging.getLogger("packhorse.worker")


@dataclass(frozen=True, slots=True)
class _Sight:
    """What one look at the store found."""

    counts: Mapping[str, Counts]
    workers: Sequence[WorkerRecord]
    late_s: float
    breakers: int
    latency_s: float
    now_us: int
    #: Notices of alerts in the queue of the other jobs, by status: no alert on everything counts
    #: its own.
    notices: Mapping[JobStatus, int] = field(default_factory=dict)


class AlertWatch(Service):
    """Judge the alerts that an app declares, and those that operators have stored."""

    name = "alerts"
    interval_s = 10.0

    def __init__(self, context: ServiceContext, *, alerts: Sequence[AlertDeclaration]) -> None:
        super().__init__(context)
        self._declared = alerts
        self._stored = False  #: operators had stored rules at the last look
        # Held until the next look, so that no other worker looks before: a kill costs one look.
        # Apps that share a store know only their own alerts, so that each has a duty for them.
        hold_us = int(self.interval_s * SECOND_US)
        names = digest(*sorted(alert.name for alert in alerts))
        self._own_duty = Duty(context, f"{self.name}:{names[:_NAMES_LENGTH]}", hold_us)
        self._rules_duty = Duty(context, self.name, hold_us)

    async def run_once(self) -> float:
        """Look once, if this worker is on duty for the alerts of its app, or for stored rules."""
        if not self._declared and not self._stored and not await self._rules():
            return self._wait_s(_NO_RULES_S)
        judges_own = bool(self._declared) and await self._own_duty.is_mine()
        judges_rules = await self._rules_duty.is_mine()
        if not judges_own and not judges_rules:
            return self._wait_s(OFF_DUTY_S)
        alerts = list(self._declared) if judges_own else []
        alerts += await self._rules() if judges_rules else []
        page = await adrive(all_records(self._store.records, ALERT_KIND), self._store.arun)
        known = {record.id.key: record for record in page.records}
        sight = await self._sight(page.now_us, {alert.measure.name for alert in alerts})
        await self._with_each(
            alerts,
            lambda alert: f"alert {alert.name!r}",
            lambda alert: self._judge(alert, known.get(alert.name), sight),
        )
        return self._wait_s()

    async def _rules(self) -> list[AlertDeclaration]:
        """Read the rules that operators have stored, without names that the app declares."""
        page = await self._page(RULE_KIND, limit=_PAGE)
        self._stored = bool(page.records)
        own = {alert.name for alert in self._declared}
        found = []
        for record in page.records:
            try:
                rule = read_rule(record.document)
                found.append(rule.declaration(record.id.key))
            except (ConfigError, msgspec.DecodeError) as error:
                _LOG.warning("alert %r cannot be judged by this worker: %s", record.id.key, error)
        return [alert for alert in found if alert.name not in own]

    async def _judge(self, alert: AlertDeclaration, record: Record | None, sight: _Sight) -> None:
        before = AlertState()
        if record is not None:
            before = read_state(record.document)
        state, value = _measured(alert, before, sight)
        state, word = judged(state, alert.rule, value, sight.now_us)
        if state == before:
            return
        version = 0 if record is None else record.version
        jobs = []
        if word is not None:
            notice = _notice(alert, state, word, sight.now_us)
            jobs = alert.notice_jobs(notice, ALERT_QUEUE if self._declared else DEFAULT_QUEUE)
        # A conflict is an operator's silence, or another worker's look: the next look reads it.
        put = Put(RecordId(ALERT_KIND, "", alert.name), msgspec.json.encode(state), version)
        await self._change(put, jobs=jobs)

    async def _sight(self, now_us: int, wanted: Collection[str]) -> _Sight:
        began = self._monotonic()
        counts = await self._store.arun(self._store.inspection.counts())
        latency_s = self._monotonic() - began
        workers = await self._store.arun(self._store.leases.workers())
        late_s, breakers = 0.0, 0
        if "late_schedules" in wanted:
            page = await self._page(SCHEDULE_KIND, limit=1, by_order=True)
            orders = [record.order for record in page.records if record.order is not None]
            late_s = max([0.0, *((page.now_us - order) / SECOND_US for order in orders)])
        if "open_breakers" in wanted:
            page = await self._page(BREAKER_KIND, limit=_PAGE)
            found = [breaker_info(record, page.now_us) for record in page.records]
            breakers = sum(each.state.value == _BREAKER_OPEN for each in found)
        by_queue = {each.queue: each for each in counts}
        notices = await self._notices()
        return _Sight(by_queue, workers, late_s, breakers, latency_s, now_us, notices)

    async def _notices(self) -> Counter[JobStatus]:
        """Count the notices that a worker without alerts of its own has submitted."""
        chosen = JobFilter(
            queue=DEFAULT_QUEUE, task=DELIVER_TASK, statuses=(*WAITING, JobStatus.DEAD)
        )
        page = await self._store.arun(
            self._store.inspection.search(chosen, limit=_PAGE, most=_NOTICES_MOST)
        )
        return Counter(record.status for record in page.jobs)


def _measured(
    alert: AlertDeclaration, state: AlertState, sight: _Sight
) -> tuple[AlertState, float | None]:
    """Return an alert's state with what the next look needs, and the value of its measure."""
    measure = alert.measure
    base = measure.name.removesuffix(".growth")
    if base == "failure_rate":
        return _failure_rate(alert, state, sight)
    value = _value(base, alert.queue, sight)
    if not measure.over_window:
        return state, value
    state = sampled(state, (value,), alert.over_us, sight.now_us)
    risen = grown(state, (value,))
    return state, None if risen is None else risen[0]


def _value(name: str, queue: str, sight: _Sight) -> float:
    named = queue or ALERT_QUEUE  # an alert on all queues leaves out that of its own notices
    counts = [each for each in sight.counts.values() if (each.queue == named) is bool(queue)]
    own = sight.notices if not queue else {}
    match name:
        case "oldest_ready":
            since = [each.oldest_ready_us for each in counts if each.oldest_ready_us is not None]
            return max([0.0, *((sight.now_us - each) / SECOND_US for each in since)])
        case "depth":
            return _jobs(counts, WAITING, own)
        case "dead_letters":
            return _jobs(counts, (JobStatus.DEAD,), own)
        case "workers":
            live = [each for each in sight.workers if each.live]
            return sum(not queue or queue in each.queues for each in live)
        case "late_schedules":
            return sight.late_s
        case "open_breakers":
            return sight.breakers
        case _:
            return sight.latency_s


def _jobs(
    counts: Iterable[Counts], statuses: Iterable[JobStatus], left_out: Mapping[JobStatus, int]
) -> int:
    """Count the jobs of these statuses; another look may have found more to leave out."""
    found = Counter[JobStatus]()
    for each in counts:
        found.update(each.by_status)
    return sum(max(0, found[status] - left_out.get(status, 0)) for status in statuses)


def _failure_rate(
    alert: AlertDeclaration, state: AlertState, sight: _Sight
) -> tuple[AlertState, float | None]:
    """Return the share of attempts within the window that failed; 0 if there were none."""
    live = sorted((each for each in sight.workers if each.live), key=lambda each: each.worker)
    now = {each.worker: each.totals for each in live[:_WORKERS_MAX]}
    seen = {name: (totals.succeeded, totals.failed) for name, totals in now.items()}
    totals = state.totals or (0.0, 0.0)
    if state.totals:  # else this is the first look, and what was before is no news
        risen = [
            (new - old for new, old in zip(counts, state.seen.get(name, (0, 0)), strict=True))
            for name, counts in seen.items()
        ]
        parts = [totals, *(tuple(max(0, each) for each in rise) for rise in risen)]
        totals = tuple(float(sum(column)) for column in zip(*parts, strict=True))
    state = msgspec.structs.replace(state, totals=totals, seen=seen)
    state = sampled(state, totals, alert.over_us, sight.now_us)
    succeeded, failed = grown(state, totals) or (0.0, 0.0)
    return state, failed / (succeeded + failed) if succeeded + failed else 0.0


def _notice(alert: AlertDeclaration, state: AlertState, word: str, now_us: int) -> AlertNotice:
    value = 0.0 if state.value is None else state.value
    shown, bound = alert.measure.shown(value), alert.measure.shown(alert.rule.bound.value)
    side = "more" if alert.rule.bound.above else "less"
    text = f"{alert.name}: {alert.subject} is {shown}; {side} than {bound} is an alert"
    if word == "cleared":
        text = f"{alert.name} is over: {alert.subject} is {shown}"
    since = state.firing_us or now_us
    return AlertNotice(
        alert=alert.name,
        state=word,
        text=text,
        value=value,
        queue=alert.queue,
        since=to_datetime(since).isoformat(),
    )
