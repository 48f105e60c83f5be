# SPDX-License-Identifier: MIT
"""Figures in the text format of Prometheus.

Queues and tasks are labels; ids of jobs, traces, workers and tenants never are, so that a scrape
does not grow with the load. Figures of queues come from the store: every worker shows the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from packhorse.core.clock import SECOND_US
from packhorse.core.job import WAITING, JobStatus
from packhorse.core.policies.series import BOUNDS_S, EXPOSED_S, OUTCOMES, Series, added
from packhorse.runtime.supervisor.messages import Report
from packhorse.stores.requests import Counts
from packhorse.version import installed_version

_PREFIX: Final = "packhorse_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of some processes, and of the queues they serve."""

    past: Sequence[Report]  #: of processes that are gone
    living: Sequence[Report]
    processes: int
    restarts: int
    queues: Sequence[Counts] = ()
    now_us: int = 0


def exposition(figures: Figures) -> str:
    """Write all figures as text."""
    lines = [*_totals(figures), *_saturation(figures)]
    lines += _series(added(*(each.series for each in (*figures.past, *figures.living))))
    lines += _queues(figures)
    lines += family(
        *("info", "gauge", "The release that runs"),
        [(f'{{version="{_escaped(installed_version())}"}}', 1)],
    )
    return "\n".join(lines) + "\n"


Samples = Iterable[tuple[str, float]]


def family(name: str, kind: str, help_text: str, samples: Samples) -> list[str]:
    """Write one metric with its samples, each a text of labels and a value."""
    full = _PREFIX + name
    lines = [f"{full}{labels} {value}" for labels, value in samples]
    return [f"# HELP {full} {help_text}.", f"# TYPE {full} {kind}", *lines] if lines else []


def _one(name: str, kind: str, help_text: str, value: float) -> list[str]:
    return family(name, kind, help_text, [("", value)])


def _totals(figures: Figures) -> list[str]:
    reports = (*figures.past, *figures.living)
    slow = [each.p95_duration_ms for each in figures.living if each.p95_duration_ms is not None]
    expired = "Jobs whose deadline passed before they could begin, or begin again"
    p95 = "Time within which 95 % of the last attempts ended"
    return [
        *_one("success_count", "counter", "Attempts that succeeded", _sum(reports, "succeeded")),
        *_one("failure_count", "counter", "Attempts that failed", _sum(reports, "failed")),
        *_one("retry_count", "counter", "Retries scheduled", _sum(reports, "retried")),
        *_one("dead_count", "counter", "Jobs given up", _sum(reports, "dead")),
        *_one("expired_count", "counter", expired, _sum(reports, "expired")),
        *_one("timeout_count", "counter", "Attempts that timed out", _sum(reports, "timed_out")),
        *(_one("p95_duration_ms", "gauge", p95, max(slow)) if slow else ()),
        *_one("processes", "gauge", "Worker processes", figures.processes),
        *_one("process_restarts", "counter", "Processes replaced", figures.restarts),
    ]


def _saturation(figures: Figures) -> list[str]:
    living = figures.living
    running, slots = _sum(living, "running"), _sum(living, "slots")
    stuck = _sum(living, "abandoned")
    full = "Share of the slots in use"
    return [
        *_one("running_jobs", "gauge", "Handlers that run", running),
        *_one("slots", "gauge", "Jobs that may run at once", slots),
        *(_one("saturation_ratio", "gauge", full, round(running / slots, 4)) if slots else ()),
        *_one("ahead_jobs", "gauge", "Jobs held that have not begun", _sum(living, "ahead")),
        *_one("unsettled_jobs", "gauge", "Ends not stored yet", _sum(living, "unsettled")),
        *_one("stuck_handlers", "gauge", "Handlers that do not stop", stuck),
    ]


def _sum(reports: Iterable[Report], name: str) -> int:
    return sum(int(getattr(report, name)) for report in reports)


def _series(series: Sequence[Series]) -> list[str]:
    known = sorted(series, key=lambda each: each.key)
    ended = [
        (labels_text(queue=each.queue, task=each.task, outcome=outcome), count)
        for each in known
        for outcome, count in zip(OUTCOMES, each.outcomes, strict=True)
        if count or outcome in OUTCOMES[:3]  # what rates are made of is there from the start
    ]
    late = [(labels_text(queue=each.queue, task=each.task), each.timeouts) for each in known]
    run = [(each, each.run, each.run_s) for each in known]
    wait = [(each, each.wait, each.wait_s) for each in known]
    timeouts = "Attempts that timed out"
    waited = "How long jobs were ready before their first attempt"
    return [
        *family("attempts_total", "counter", "Attempts, by what they came to", ended),
        *family("attempt_timeouts_total", "counter", timeouts, late),
        *family("job_run_seconds", "histogram", "How long attempts ran", _histogram(run)),
        *family("job_wait_seconds", "histogram", waited, _histogram(wait)),
    ]


def _histogram(rows: Iterable[tuple[Series, tuple[int, ...], float]]) -> Samples:
    """Yield the samples of a histogram: `_bucket`, `_sum` and `_count` follow its name."""
    bounds = (*BOUNDS_S, None)
    for series, buckets, total_s in rows:
        if not buckets:
            continue  # it has only attempts that ended with their process
        count = 0
        for bound, number in zip(bounds, buckets, strict=True):
            count += number
            if bound is None or bound in EXPOSED_S:
                le = "+Inf" if bound is None else f"{bound:g}"
                yield f"_bucket{labels_text(queue=series.queue, task=series.task, le=le)}", count
        labels = labels_text(queue=series.queue, task=series.task)
        yield f"_sum{labels}", round(total_s, 6)
        yield f"_count{labels}", count


def _queues(figures: Figures) -> list[str]:
    counts = figures.queues
    depth = [
        (labels_text(queue=each.queue), sum(each.by_status.get(status, 0) for status in WAITING))
        for each in counts
    ]
    states = [
        (labels_text(queue=each.queue, state=status.value), each.by_status.get(status, 0))
        for each in counts
        for status in JobStatus
    ]
    oldest = "How long the longest-waiting ready job has waited; 0 if none is ready"
    ages = [
        (labels_text(queue=each.queue), _age_s(each.oldest_ready_us, figures.now_us))
        for each in counts
    ]
    return [
        *family("queue_depth", "gauge", "Jobs that wait", depth),
        *family("queue_jobs", "gauge", "Jobs the store holds", states),
        *family("queue_oldest_ready_seconds", "gauge", oldest, ages),
    ]


def _age_s(since_us: int | None, now_us: int) -> float:
    return 0.0 if since_us is None else max(0, now_us - since_us) / SECOND_US


def labels_text(**labels: str) -> str:
    """Write labels as they stand behind the name of a metric."""
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{inside}}}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
