# SPDX-License-Identifier: MIT
"""Strategies of the state machine: few names and few spans, so that jobs interact."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

from packhorse.core.clock import SECOND_US
from packhorse.core.job import (
    DeadReason,
    JobOptions,
    JobStatus,
    NewJob,
    Priority,
    Progress,
    RetryRule,
)
from packhorse.core.lifecycle import JobRules
from packhorse.core.outcome import (
    Cancelled,
    Failed,
    GivenUp,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    TimedOut,
)
from packhorse.core.policies.retention import DAY_US, Retention
from packhorse.stores.requests import JobFilter, QueueSettings
from packhorse.testing.conformance.samples import EXCEPTION, LEASE_US, TIMEOUT

QUEUES: Final = ("mail", "reports")
SHELF: Final = "shelf"
TASKS: Final = ("send_email", "resize")
WORKERS: Final = ("anna", "ben", "carl")
_TENANTS: Final = ("", "acme")
_TAGS: Final = ("red", "blue")

#: Used for delays, deadlines, lifetimes and the clock, so that they are often exactly equal.
spans_us = st.sampled_from(
    [1, SECOND_US, 2 * SECOND_US, 5 * SECOND_US, LEASE_US, 2 * LEASE_US, 600 * SECOND_US, DAY_US]
)
_delays_us = st.just(0) | spans_us
_lifetimes_us = st.none() | spans_us

workers = st.sampled_from(WORKERS)
tenants = st.sampled_from([None, None, *_TENANTS])
#: The queues a worker serves, and the tasks it knows; most serve and know all.
served = st.tuples(
    st.sampled_from([QUEUES, QUEUES, QUEUES[::-1], QUEUES[:1], QUEUES[1:]]),
    st.sampled_from([TASKS, TASKS, TASKS[:1], TASKS[1:]]),
)
notes = st.builds(Progress, done=st.sampled_from([0.0, 1.5]), note=st.sampled_from(["", "half"]))

_options = st.none() | st.builds(
    JobOptions,
    max_crashes=st.sampled_from([None, 0, 1, 2]),
    max_snoozes=st.sampled_from([None, 1]),
    retry=st.none() | st.just(RetryRule(max_retries=1, jitter=False)),
)

#: What a submit asks for; instants are given as spans from now.
wishes = st.fixed_dictionaries(
    {},
    optional={
        "queue": st.sampled_from([*QUEUES, SHELF]),
        "task": st.sampled_from(TASKS),
        "priority": st.sampled_from(Priority),
        "delay_us": st.sampled_from([0, 0, 0, 1, SECOND_US, LEASE_US]),
        "scheduled_us": st.sampled_from([-SECOND_US, -1, 0, SECOND_US]),
        "deadline_us": st.sampled_from([1, LEASE_US, 600 * SECOND_US, DAY_US, 2 * DAY_US]),
        "timeout_us": st.sampled_from([SECOND_US, LEASE_US]),
        "tenant": st.sampled_from(_TENANTS),
        "tags": st.sampled_from([(), _TAGS, _TAGS[:1]]),
        "options": _options,
        "created_by": st.just("anna"),
        "trace_id": st.just("trace"),
        "upstream_request_id": st.just("request"),
    },
)
#: Jobs any worker may take at once.
plain_wishes = st.fixed_dictionaries(
    {},
    optional={
        "queue": st.sampled_from(QUEUES),
        "priority": st.sampled_from(Priority),
        "options": _options,
    },
)


def as_new_job(job_id: str, wish: dict[str, Any], now_us: int) -> NewJob:
    """Make the job that was drawn; `padding` makes its payload longer."""
    values = {"queue": QUEUES[0], "task": TASKS[0]} | wish
    padding = b',"":"%s"' % (b"x" * size) if (size := values.pop("padding", 0)) else b""
    for name in ("scheduled_us", "deadline_us"):
        if name in wish:
            values[name] = now_us + wish[name]
    return NewJob(id=job_id, payload=b'{"id":"%s"%s}' % (job_id.encode(), padding), **values)


_failures = st.builds(
    Failed,
    error=st.just(EXCEPTION),
    kinds=st.sampled_from([("builtins.Exception",), ("builtins.BaseException",)]),
    asked=st.booleans(),
    retry_delay_us=st.none() | _delays_us,
)
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.just(Succeeded('"done"')),
    _failures,
    st.builds(TimedOut, error=st.just(TIMEOUT), deadline=st.booleans()),
    st.builds(Snoozed, delay_us=_delays_us),
    st.just(Cancelled()),
    st.builds(Released, started=st.booleans()),
    st.builds(
        GivenUp,
        reason=st.sampled_from([DeadReason.REJECTED, DeadReason.UNDECODABLE]),
        error=st.just(EXCEPTION),
    ),
)
_retentions = st.builds(
    Retention, finished_us=_lifetimes_us, results_us=_lifetimes_us, dead_us=_lifetimes_us
)
limits = st.builds(
    JobRules,
    retry=st.sampled_from([RetryRule(), RetryRule(max_retries=0), RetryRule(retry_timeouts=False)]),
    max_snoozes=st.sampled_from([None, 0, 1]),
    retention=_retentions,
    result_keep_us=_lifetimes_us,
)

queue_settings = st.builds(
    QueueSettings,
    name=st.sampled_from(QUEUES),
    priority=st.integers(0, 2),
    dead_letter=st.sampled_from([None, SHELF, SHELF, QUEUES[1]]),
    retention=st.none() | _retentions,
)
filters = st.builds(
    JobFilter,
    queue=st.sampled_from([None, None, *QUEUES]),
    task=st.sampled_from([None, None, *TASKS]),
    statuses=st.sampled_from([(), (), (JobStatus.DEAD,), (JobStatus.COMPLETED, JobStatus.QUEUED)]),
    tenant=tenants,
    tag=st.sampled_from([None, None, *_TAGS]),
    created_by=st.sampled_from([None, None, "anna"]),
    dead_reason=st.sampled_from([None, None, DeadReason.EXPIRED]),
    dead_letter=st.sampled_from([None, None, SHELF]),
)
