# SPDX-License-Identifier: MIT
"""What a worker is set to: frozen, checked when built; a refusal names setting and fix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from packhorse.core.clock import SECOND_US
from packhorse.core.job import PRIORITY_BY_NAME
from packhorse.errors import ConfigError

#: After which exceptions a process is replaced: those that leave its state in doubt, or any that
#: the task does not name.
_RECYCLE_ON: Final = ("fatal", "unexpected")
#: Below this a lease is renewed so often that renewing is all a store would do.
_LEASE_US_MIN: Final = 50_000
#: A store gives a job away 30 s after its timeout; its worker must have let go before.
_STOP_GRACE_US_MAX: Final = 20 * SECOND_US
#: More slots in one process than this are a mistyped number.
_CONCURRENCY_MAX: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How one worker process works."""

    queues: tuple[str, ...]  #: those it serves, and no others
    concurrency: int = 100  #: jobs running at once
    burst: bool = False  #: leave when there is nothing left to do
    queue_caps: Mapping[str, int] = field(default_factory=dict)  #: jobs at once, of some queues
    reserve: Mapping[str, int] = field(default_factory=dict)  #: slots kept, by priority
    max_jobs: int | None = None  #: leave after so many attempts
    lease_us: int = 30 * SECOND_US
    poll_interval_us: int = SECOND_US  #: how long an idle worker waits when no wake-up comes
    default_timeout_us: int = 300 * SECOND_US  #: of an attempt whose job and task name none
    shutdown_timeout_us: int = 30 * SECOND_US  #: how long running jobs may go on after a signal
    stop_grace_us: int = 5 * SECOND_US  #: how long a handler may take to stop when told to
    abandoned_threads_max: int | None = None  #: with so many the worker leaves; None: concurrency
    handle_signals: bool = True  #: TERM and INT stop the worker, where it runs in the main thread
    name: str = ""  #: shown beside the worker's id
    process_slots: int | None = None  #: processes for `executor="process"`; None: one per core
    process_memory_mib: int | None = None  #: what each may ask for; None: no limit of ours
    process_cpu_us: int | None = None  #: CPU time of one job in a process; None: its timeout only
    process_max_jobs: int = 10_000  #: one is replaced after so many jobs
    process_max_failures: int = 10  #: after so many failures in a row
    process_recycle_mib: int | None = None  #: or when it has more than this after a job
    recycle_jobs: int | None = None  #: the worker's own process is replaced after so many jobs
    recycle_failures: int | None = None  #: after so many failures in a row
    recycle_mib: int | None = None  #: or when it has more than this
    tenants: tuple[str, ...] = ()  #: whose jobs a consumer fetches; none: everyone's
    recycle_on: str = "fatal"  #: exceptions after which a process is replaced; or "unexpected"

    def __post_init__(self) -> None:
        if isinstance(self.queues, str):  # else its letters would be the queues
            raise ConfigError(f"worker: queues is {self.queues!r}; give a list of names")
        object.__setattr__(self, "queues", tuple(dict.fromkeys(self.queues)))
        problem = next(_problems(self), None)
        if problem is not None:
            raise ConfigError(f"worker: {problem}")


def _problems(options: WorkerOptions) -> Iterator[str]:
    """Say each thing that is wrong."""
    if not options.queues:
        yield "queues is empty, so it would never do anything; name at least one queue"
    if not all(options.queues):
        yield f"queues is {options.queues!r}; give the names of queues as non-empty texts"
    yield from _slot_problems(options)
    for setting, name in _COUNTS:
        value = getattr(options, name)
        if value is not None and not _is_count(value, 1):
            yield f"{setting} is {value!r}; give 1 or more"
    if options.max_jobs is not None and not _is_count(options.max_jobs, 1):
        yield f"max_jobs is {options.max_jobs!r}; give 1 or more, or None for no limit"
    yield from _time_problems(options)
    if options.recycle_on not in _RECYCLE_ON:
        yield f"recycle_on is {options.recycle_on!r}; give one of {', '.join(_RECYCLE_ON)}"


def _slot_problems(options: WorkerOptions) -> Iterator[str]:
    slots, kept = options.concurrency, dict(options.reserve)
    if not _is_count(slots, 1, _CONCURRENCY_MAX):
        yield f"concurrency is {slots!r}; give 1 to {_CONCURRENCY_MAX}"
    for name, cap in options.queue_caps.items():
        if name not in options.queues or not _is_count(cap, 1):
            yield f"queue_caps has {name!r}: {cap!r}; give queues it serves, and 1 or more for each"
    if not set(kept) < set(PRIORITY_BY_NAME):
        yield f"reserve is {kept!r}; give slots by priority: {{'critical': 2}}"
    if not all(_is_count(each, 1) for each in kept.values()) or sum(kept.values()) >= slots:
        yield (
            f"reserve is {kept!r} of {slots} slots; keep 1 or more, and leave at least one for "
            "other jobs"
        )


#: Numbers from 1, by the names that messages give them.
_COUNTS: Final = (
    *(("process_slots", "process_slots"), ("process_memory", "process_memory_mib")),
    *(("process_cpu", "process_cpu_us"), ("process_max_jobs", "process_max_jobs")),
    *(("process_max_failures", "process_max_failures"), ("process_recycle", "process_recycle_mib")),
    *(("recycle_jobs", "recycle_jobs"), ("recycle_failures", "recycle_failures")),
    ("recycle_mib", "recycle_mib"),
)


def _time_problems(options: WorkerOptions) -> Iterator[str]:
    lease_s, grace_s = options.lease_us / SECOND_US, options.stop_grace_us / SECOND_US
    if options.lease_us < _LEASE_US_MIN:
        yield f"lease is {lease_s:g} s; give at least 0.05 s, and some seconds in production"
    for setting in ("poll_interval", "default_timeout", "stop_grace"):
        span_us = getattr(options, f"{setting}_us")
        if span_us <= 0:
            yield f"{setting} is {span_us / SECOND_US:g} s; give more than zero"
    if options.stop_grace_us > _STOP_GRACE_US_MAX:
        yield (
            f"stop_grace is {grace_s:g} s; give at most {_STOP_GRACE_US_MAX / SECOND_US:g} s: "
            "others may take the job soon after"
        )
    if options.shutdown_timeout_us < 0:
        shutdown_s = options.shutdown_timeout_us / SECOND_US
        yield f"shutdown_timeout is {shutdown_s:g} s; give 0 or more"


def _is_count(value: object, least: int, most: int | None = None) -> bool:
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return value >= least and (most is None or value <= most)
