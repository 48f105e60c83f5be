# SPDX-License-Identifier: MIT
"""The part of a worker that runs handlers in processes; there only if some task wants it."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Final

from packhorse.clock import SECOND_US
from packhorse.config import WorkerOptions
from packhorse.errors import ConfigError
from packhorse.outcome import Outcome
from packhorse.registry import Registry
from packhorse.worker.attempt import Attempt
from packhorse.worker.process_child import VARIABLE
from packhorse.worker.process_messages import Setup
from packhorse.worker.process_pool import PoolCalls, ProcessLimits, ProcessPool
from packhorse.worker.process_runner import ProcessRunner
from packhorse.worker.progress import ProgressBoard

__all__ = ["origin_of", "process_runner", "process_tasks"]

_MIB: Final = 1024 * 1024
_MAIN: Final = "__main__"


def process_tasks(registry: Registry) -> frozenset[str]:
    """The names of tasks whose handlers run in processes, aliases too."""
    found = ((name, registry.get(name)) for name in registry.names)
    return frozenset(name for name, task in found if task is not None and task.kind == "process")


def process_runner(
    worker: str,
    origin: str,
    options: WorkerOptions,
    progress: ProgressBoard,
    *,
    begin: Callable[[Attempt], None],
    finish: Callable[[Attempt, Outcome], None],
    calls: PoolCalls,
) -> ProcessRunner:
    """What runs them, with its processes; none is started yet."""
    memory_mib, cpu_us = options.process_memory_mib, options.process_cpu_us
    setup = Setup(
        app=origin,
        path=tuple(sys.path),
        main=_main_file() if origin.startswith(f"{_MAIN}:") else None,
        worker=worker,
        log_level=logging.getLogger("packhorse").getEffectiveLevel(),
        memory_bytes=None if memory_mib is None else memory_mib * _MIB,
        cpu_s=None if cpu_us is None else max(1, cpu_us // SECOND_US),
    )
    limits = ProcessLimits(
        slots=min(options.process_slots or os.cpu_count() or 1, options.concurrency),
        max_jobs=options.process_max_jobs,
        max_failures=options.process_max_failures,
        recycle_mib=options.process_recycle_mib,
    )
    pool = ProcessPool(setup, limits, calls)
    return ProcessRunner(pool, progress, begin, finish, options.stop_grace_us / SECOND_US)


def origin_of(app: object | None, given: str | None) -> str:
    """`module:attribute` by which a process can import the app."""
    if os.environ.get(VARIABLE):
        raise ConfigError(
            "a worker was started by a module that a handler's process only imports; start it "
            "under: if __name__ == '__main__':"
        )
    if given is not None:
        return given
    for module_name, module in list(sys.modules.items()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is app:
                return f"{module_name}:{name}"
    raise ConfigError(
        "executor='process' imports the app in another process, and it is no variable of any "
        "module; make it one, or start it with 'packhorse worker module:create_app'"
    )


def _main_file() -> str | None:
    path: str | None = getattr(sys.modules[_MAIN], "__file__", None)
    return None if path is None else os.path.abspath(path)  # noqa: PTH100 - stays a text
