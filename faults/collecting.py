# SPDX-License-Identifier: MIT
"""From what was written down and what the store says to what the checker judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from faults.checking import kept, limits, promises, rescues
from faults.checking.contest import (
    Asked,
    Contest,
    Facts,
    Span,
    begun_in_time,
    begun_too_late,
    claimed_at_once,
    granted_in_a_window,
    stale,
)
from faults.checking.evidence import Evidence, Run, Standing, Verdict, overlaps, runs_of
from faults.checking.rescues import Loss, Losses, losses_of
from faults.checking.timeline import Timeline
from faults.injectors.fault import Fault
from faults.plan import Plan
from faults.producer import TALLY, Answer
from faults.records import Line
from faults.tasks import GUILTY, LIMITS
from faults.workers import Workers
from faults.worlds import all_jobs
from packhorse import Packhorse
from packhorse.core.clock import SECOND_US
from packhorse.core.job import AttemptRecord, JobRecord, JobStatus
from packhorse.core.lifecycle import INNOCENT_LOSSES

if TYPE_CHECKING:
    from faults.rig import Rig

#: The error code of an attempt that was lost with its worker.
_LOST: Final = "WORKER_LOST"
#: How a job may end after a loss without running again.
_WITHOUT_A_RUN: Final = (JobStatus.CANCELLED, JobStatus.DEAD)


class Findings(msgspec.Struct, frozen=True):
    """What a run came to."""

    plan: Plan
    seconds: float
    faults: Sequence[Fault]
    verdict: Verdict
    facts: Mapping[str, float]
    rescues: Mapping[str, float]
    limits: Mapping[str, str]
    store: Mapping[str, str]
    losses: Losses


def collected(rig: Rig, workers: Workers, codes: set[int], seconds: float) -> Findings:
    """Judge a run that is over."""
    lines = rig.world.lines()
    unsure = _unsure(lines)
    runs = runs_of(lines)
    time = Timeline(rig.store_clock.steps)
    jobs = [_Known(rig.app, record, time) for record in _records(rig.app)]
    contest = Contest(
        limits=LIMITS,
        jobs=[job.facts() for job in jobs],
        runs=runs,
        asked=_asked(lines),
        pushed_back=frozenset(
            (line.job_id, line.attempt) for line in lines if line.event == "limited"
        ),
        steps_us=[step.at_us for step in time.steps],
    )
    in_time = begun_in_time(contest)
    late = [run for run in runs if run not in in_time]
    evidence = _evidence(lines, jobs, rig.between, unsure)
    went_on = stale(contest) + sum(line.event == "stale" for line in lines)
    evidence = msgspec.structs.replace(
        evidence, runs=in_time, late=late, stale=went_on, counted=_counted(rig.app)
    )
    lost = _losses(rig, workers, runs, jobs, time)
    of_jobs, of_limits = promises.judge(evidence), limits.judge(contest)
    of_kept = kept.judge(_kept(rig.app, lines))
    verdict = Verdict(
        {
            **of_jobs.findings,
            **of_limits.findings,
            **of_kept.findings,
            "taken back late": list(rescues.late(lost)),
            "run again late": list(rescues.ran_late(lost)),
        },
        {**of_jobs.cases, **of_limits.cases, **of_kept.cases, **rescues.cases(lost)},
    )
    facts = {**_facts(contest, runs, lines, evidence), **_endings(workers, codes, runs, evidence)}
    return Findings(
        *(rig.plan, round(seconds, 1), rig.faults, verdict, facts),
        rescues=rescues.summary(lost),
        limits=_uses(contest),
        store=rig.ground.facts(),
        losses=lost,
    )


class _Known:
    """One job as the store has it, by the machine's clock."""

    def __init__(self, app: Packhorse, record: JobRecord, time: Timeline) -> None:
        self.record = record
        self.history = app.store.run(app.store.inspection.history(record.id))
        self._time = time

    def facts(self) -> Facts:
        record, time = self.record, self._time
        spans = [self._span(line) for line in self.history]
        given_back = sum(line.status is JobStatus.QUEUED for line in self.history)
        doubtful = any(span.doubtful for span in spans) or time.doubtful(record.created_us)
        hidden = record.counters.releases - given_back
        return Facts(
            job_id=record.id,
            task=record.task,
            queue=record.queue,
            created_us=time.latest(record.created_us),
            spans=spans,
            finished_us=self.finished_us(late=False),
            status=record.status,
            tenant=record.tenant,
            ordering_key=record.ordering_key,
            concurrency_key=record.concurrency_key,
            rate_key=record.rate_key,
            weight=record.weight,
            doubtful=doubtful,
            hidden=max(hidden, int(doubtful)),
        )

    def standing(self) -> Standing:
        found = standing_of(self.record)
        return msgspec.structs.replace(found, finished_us=self.finished_us(late=True))

    def finished_us(self, *, late: bool) -> int | None:
        at_us = self.record.finished_us
        if at_us is None:
            return None
        return self._time.latest(at_us) if late else self._time.earliest(at_us)

    def why_ended(self, attempt: int) -> str:
        """What the store was told of the end of an attempt, if anything."""
        errors = [line.error for line in self.history if line.attempt == attempt]
        return next((error.message for error in errors if error is not None), "")

    def suspected(self, code: str) -> Iterator[tuple[int, int]]:
        """From its second loss on, until it is over."""
        lost = [each.finished_us for each in self.history if each.error and each.error.code == code]
        if len(lost) >= INNOCENT_LOSSES + 1:
            over_us = self.record.finished_us or lost[-1]
            yield self._time.earliest(lost[INNOCENT_LOSSES]), self._time.latest(over_us)

    def _span(self, line: AttemptRecord) -> Span:
        time = self._time
        return Span(
            *(line.attempt, time.latest(line.started_us), time.earliest(line.finished_us)),
            worker=line.worker,
            doubtful=time.doubtful(line.started_us) or time.doubtful(line.finished_us),
        )


def standing_of(record: JobRecord) -> Standing:
    """Where a job stands."""
    result = None if record.result is None else msgspec.json.decode(record.result)
    return Standing(
        job_id=record.id,
        status=record.status,
        fence=record.fence,
        counters=record.counters,
        finished_us=record.finished_us,
        result_fence=result["fence"] if isinstance(result, dict) else None,
    )


def _records(app: Packhorse) -> list[JobRecord]:
    """Every job in the order of admission, with its result."""
    ids = reversed(list(all_jobs(app)))  # the newest comes first
    found = (app.store.run(app.store.inspection.job(job_id)) for job_id in ids)
    return [record for record in found if record is not None]


def _counted(app: Packhorse) -> Counter[str]:
    """How many jobs of each status the store says there are, over all queues."""
    counted: Counter[str] = Counter()
    for counts in app.store.run(app.store.inspection.counts()):
        counted.update({status.value: number for status, number in counts.by_status.items()})
    return counted


def _evidence(
    lines: Sequence[Line],
    jobs: Sequence[_Known],
    between: Sequence[Standing],
    unsure: frozenset[str],
) -> Evidence:
    told: dict[str, set[str]] = {}
    for line in lines:
        told.setdefault(line.event, set()).add(line.job_id)
    return Evidence(
        submitted=frozenset(told.get("submitted", ())),
        runs=(),
        accepted=[line.job_id for line in lines if line.event == "completed"],
        at_last={job.record.id: job.standing() for job in jobs},
        between=between,
        guilty=frozenset(job.record.id for job in jobs if job.record.task in GUILTY),
        unsure=unsure,
        cancelled=frozenset(told.get("cancel heard", ())),
        effects=[(line.note, line.job_id) for line in lines if line.event == "keyed effect"],
    )


def _unsure(lines: Sequence[Line]) -> frozenset[str]:
    """The jobs that may be stored, and of which no producer was told so before it died."""
    told: dict[str, set[str]] = {}
    for line in lines:
        told.setdefault(line.event, set()).add(line.job_id)
    unanswered = told.get("asking", set()) - told.get("not stored", set())
    return frozenset((unanswered | told.get("unsure", set())) - told.get("submitted", set()))


def _kept(app: Packhorse, lines: Sequence[Line]) -> kept.Kept:
    """What was to be kept beside jobs, and what is there."""
    store = app.store
    told: dict[str, list[Line]] = {}
    for line in lines:
        told.setdefault(line.event, []).append(line)
    attached = [(line.job_id, line.note) for line in told.get("attached", ())]
    delivered = [(line.job_id, line.note) for line in told.get("signal delivered", ())]
    found = {
        job_id: store.run(store.attachments.attachments(job_id))
        for job_id in {job_id for job_id, _ in (*attached, *delivered)}
    }
    tally = store.run(store.records.record(TALLY))
    return kept.Kept(
        added=frozenset(line.note for line in told.get("counting", ())),
        answered=frozenset(line.note for line in told.get("counted", ())),
        counted=0 if tally is None else tally.counters.get("submits", 0),
        attached=attached,
        delivered=delivered,
        there={job_id: one for job_id, one in found.items() if one is not None},
    )


def _losses(
    rig: Rig, workers: Workers, runs: Sequence[Run], jobs: Sequence[_Known], time: Timeline
) -> Losses:
    ended_us = {
        (job.record.id, line.attempt): time.earliest(line.finished_us)
        for job in jobs
        for line in job.history
    }
    lease_us = round(rig.plan.lease_s * SECOND_US)
    away = [(fault.at_us, fault.until_us) for fault in rig.faults if fault.away]
    claimed = {
        (job.record.id, line.attempt): time.earliest(line.started_us)
        for job in jobs
        for line in job.history
    }
    lost = {
        (job.record.id, line.attempt): claimed[job.record.id, line.attempt]
        for job in jobs
        for line in job.history
        if line.error is not None and line.error.code == _LOST
    }
    excused = partial(
        rescues.excused_us, lease_us=lease_us, time=time, away=away, stalls=rig.stalls
    )
    suspects = [spell for job in jobs for spell in job.suspected(_LOST)]
    known = {job.record.id: job for job in jobs}
    ended = {job.record.id for job in jobs if job.record.status in _WITHOUT_A_RUN}
    bound = {job.record.id for job in jobs if _is_bound(job.record)}
    found = [
        msgspec.structs.replace(
            loss,
            excused_us=excused((loss.died_us, loss.taken_back_us)),
            again_excused_us=excused((loss.died_us, loss.run_again_us))
            + rescues.stood_us((loss.died_us, loss.run_again_us), suspects)
            + rescues.waited_us(known[loss.job_id].why_ended(loss.attempt)),
            over=loss.run_again_us is None and loss.job_id in ended,
            bound=loss.job_id in bound or _was_passed_on(loss, known[loss.job_id].record),
            story=_story(known[loss.job_id], loss.died_us),
        )
        for loss in losses_of(runs, workers.died_us, ended_us, lost, claimed)
    ]
    return Losses(lease_us, found)


def _was_passed_on(loss: Loss, record: JobRecord) -> bool:
    """Whether another worker had the job before it ran again, and gave it back unbegun.

    On Redis fences do not count claims one by one, so that there all that were ever given back are.
    """
    return loss.fences > 1 and record.counters.releases > 0


def _story(job: _Known, died_us: int) -> str:
    """What the store knows of a job's attempts, in seconds since a process died."""
    record = job.record
    told = [
        f"{line.attempt} {_since(died_us, line.started_us)} to {_since(died_us, line.finished_us)} "
        f"{line.status} {line.error.code if line.error else ''} of {line.worker}"
        for line in job.history
    ]
    if record.started_us is not None:
        last = _since(died_us, record.started_us)
        told.append(f"last claimed at {last}, {record.counters.releases} releases")
    return f" ({record.task}: {'; '.join(told)})"


def _since(died_us: int, at_us: int) -> str:
    return f"{(at_us - died_us) / SECOND_US:+.1f}"


def _is_bound(record: JobRecord) -> bool:
    """Whether a limit or an order may hold the job back."""
    queues = (*LIMITS.queue_concurrency, *LIMITS.queue_rate, *LIMITS.tenant_rate)
    tasks = (*LIMITS.task_concurrency, *LIMITS.task_rate)
    return record.queue in queues or record.task in tasks or record.ordering_key is not None


def _facts(
    contest: Contest, runs: Sequence[Run], lines: Sequence[Line], evidence: Evidence
) -> dict[str, float]:
    events = Counter(line.event for line in lines)
    effects = Counter(line.job_id for line in lines if line.event == "effect")
    statuses = Counter(job.status for job in contest.jobs)
    return {
        "jobs": len(contest.jobs),
        **{f"jobs {status}": number for status, number in sorted(statuses.items())},
        "submits answered": events["submitted"],
        "submits whose answer was lost": len(evidence.unsure),
        "submits deduplicated": sum(asked.deduplicated for asked in contest.asked),
        "submits refused as full": events["full"],
        "cancels heard": events["cancel heard"],
        "runs": len(runs),
        "runs begun too late": begun_too_late(contest),
        "handlers that went on after their job was taken": stale(contest),
        "stale writes refused": events["stale"],
        "effects": events["effect"],
        "effects without a key repeated": promises.repeated_effects(effects),
        "effects under a key not repeated": events["effect known"],
    }


def _endings(
    workers: Workers, codes: set[int], runs: Sequence[Run], evidence: Evidence
) -> dict[str, float]:
    counters = [standing.counters for standing in evidence.at_last.values()]
    return {
        "runs cut off": sum(run.ended_us is None for run in runs),
        "overlapping runs": overlaps(runs, workers.died_us),
        "processes that died": len(workers.died_us),
        "jobs lost with a process": sum(one.crashes > 0 for one in counters),
        "most losses of one job": max((one.crashes for one in counters), default=0),
        "most lone losses of one job": max((one.lone_crashes for one in counters), default=0),
        "workers that left otherwise than asked at the end": sum(code != 0 for code in codes),
    }


def _uses(contest: Contest) -> dict[str, str]:
    """The most of each limit that was used, of how much there was."""
    uses = sorted((*claimed_at_once(contest), *granted_in_a_window(contest)), key=lambda u: u.gate)
    return {use.gate: f"{use.most} of {use.limit}" for use in uses}


def _asked(lines: Sequence[Line]) -> list[Asked]:
    """What was answered; and what may be stored though its producer died first, for its key."""
    answers = [
        (line, msgspec.json.decode(line.note, type=Answer))
        for line in lines
        if line.event in ("asking", "submitted", "full") and line.note
    ]
    known = {line.job_id for line in lines if line.event == "not stored"}
    for line, answer in answers:
        if line.event == "submitted" and not answer.deduplicated:
            known.add(line.job_id)
    return [
        _answer(line, answer)
        for line, answer in answers
        if line.event != "asking" or line.job_id not in known
    ]


def _answer(line: Line, answer: Answer) -> Asked:
    return Asked(
        task=answer.task,
        asked_us=answer.asked_us,
        answered_us=line.at_us,
        job_id=line.job_id,
        key=answer.key,
        deduplicated=answer.deduplicated,
        count=answer.count,
    )
