# SPDX-License-Identifier: MIT
"""From the options of `app.run(...)`, or a wire WorkerConfig, to what a worker is set to."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypedDict

from packhorse.client.registry import Registry, define_task
from packhorse.core.config import WorkerOptions
from packhorse.core.durations import Duration, microseconds
from packhorse.core.options import chosen_options, key_tuple, queue_text
from packhorse.errors import ConfigError
from packhorse.protocol import WorkerConfig
from packhorse.version import installed_version

_MILLISECOND_US: Final = 1_000
_CODE_VERSION: Final = "PACKHORSE_CODE_VERSION"
#: Files looked at for a fingerprint of the code.
_FILES_MAX: Final = 500


class RunOptions(TypedDict, total=False):
    """What `app.run(...)` and `app.arun(...)` take besides the queues; None is the default."""

    concurrency: int | None  #: jobs running at once; 100
    queue_caps: Mapping[str, int] | None  #: of these, jobs of some queues: {"mail": 10}
    burst: bool | None  #: return when there is nothing left to do; False
    reserve: Mapping[str, int] | None  #: slots that only so urgent jobs take: {"critical": 2}
    max_jobs: int | None  #: return after so many attempts; no limit
    lease: Duration | None  #: how long its jobs stay its own when it dies; 30 s
    poll_interval: Duration | None  #: how long it waits when no wake-up comes; 1 s
    default_timeout: Duration | None  #: of an attempt that names none; 300 s
    shutdown_timeout: Duration | None  #: how long jobs may go on after a signal; 30 s
    stop_grace: Duration | None  #: how long a handler may take to stop when told to; 5 s
    handle_signals: bool | None  #: TERM, INT and HUP stop it, in the main thread; True
    name: str | None  #: shown beside the worker's id
    process_slots: int | None  #: processes for `executor="process"`; one per core
    process_memory_mib: int | None  #: MiB each of them may ask for; no limit
    process_cpu: Duration | None  #: CPU time a job may use in one; no limit beside its timeout
    process_max_jobs: int | None  #: jobs after which one is replaced; 10,000
    process_max_failures: int | None  #: failures in a row after which one is replaced; 10
    process_recycle_mib: int | None  #: MiB after a job from which one is replaced; never
    recycle_jobs: int | None  #: jobs after which a supervised worker is replaced; never
    recycle_failures: int | None  #: failures in a row after which it is replaced; never
    recycle_mib: int | None  #: MiB in memory from which it is replaced; never
    recycle_on: str | None  #: exceptions after which a process is; "fatal", or "unexpected"
    config: WorkerConfig | Mapping[str, Any] | None  #: of the worker protocol, instead of these


_SPANS: Final = (
    *("lease", "poll_interval", "default_timeout", "shutdown_timeout", "stop_grace"),
    *("process_cpu",),
)
#: What the wire has no word for, and may be given beside a `config`.
_BESIDE_CONFIG: Final = frozenset({"concurrency", "burst", "max_jobs", "reserve", "config"})


def run_options(queues: Iterable[str], options: Mapping[str, Any]) -> WorkerOptions:
    """The options as a worker takes them."""
    chosen = chosen_options(options, RunOptions, "run()")
    for name in _SPANS:
        if name in chosen:
            chosen[f"{name}_us"] = microseconds(chosen.pop(name), setting=f"run(): {name}")
    return WorkerOptions(queues=key_tuple(queues, "run(): queues", queue_text), **chosen)


def config_options(
    config: WorkerConfig, queues: Iterable[str] | None, options: Mapping[str, Any]
) -> WorkerOptions:
    """What a wire configuration asks for; it may not be contradicted beside it."""
    chosen = chosen_options(options, RunOptions, "run()")
    double = sorted(chosen.keys() - _BESIDE_CONFIG) + (["queues"] if queues is not None else [])
    if double:
        raise ConfigError(
            f"run(): config says {', '.join(double)} by itself; give one or the other"
        )
    return WorkerOptions(
        queues=tuple(config.queues),
        name=config.name,
        poll_interval_us=config.poll_interval_ms * _MILLISECOND_US,
        lease_us=config.visibility_timeout_ms * _MILLISECOND_US,
        default_timeout_us=config.default_timeout_ms * _MILLISECOND_US,
        shutdown_timeout_us=config.shutdown_timeout_ms * _MILLISECOND_US,
        **{name: value for name, value in chosen.items() if name != "config"},
    )


def add_handlers(registry: Registry, config: WorkerConfig) -> None:
    """Declare a configuration's handlers as tasks that take the payload as it came."""
    for task_type, handler in (config.handlers or {}).items():
        known = registry.get(task_type)
        if known is None or known.function is not handler:
            registry.add(define_task(handler, {"name": task_type}, whole_payload=True))


def worker_version(registry: Registry, code: str | None) -> str:
    """What a worker tells the store it runs: this release, and which state of the user's code.

    Unless it is named, the code is known by a fingerprint of the files its tasks are in, so that
    workers before and after a deploy can be told apart.
    """
    chosen = code or os.environ.get(_CODE_VERSION) or _fingerprint(registry)
    return f"{installed_version()} {chosen.strip().replace(' ', '-')}".strip()


def _fingerprint(registry: Registry) -> str:
    files = {task.where.rpartition(":")[0] for task in registry.tasks}
    digest = hashlib.sha256()
    for name in sorted(files)[:_FILES_MAX]:
        with contextlib.suppress(OSError):  # typed into a console, or gone
            digest.update(Path(name).read_bytes())
    return digest.hexdigest()[:8] if files else ""
