# SPDX-License-Identifier: MIT
"""From the flags of `packhorse worker` to a supervisor and the command lines of its processes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from packhorse.cli.render import note
from packhorse.clock import SystemChance, SystemClock
from packhorse.errors import ConfigError
from packhorse.supervisor.probes import parse_address, probes
from packhorse.supervisor.reloading import reloading
from packhorse.supervisor.supervisor import Supervisor

__all__ = ["run_supervised", "worker_command"]

#: Of `packhorse worker`, each with one value.
_VALUES: Final = (
    *("concurrency", "max_jobs", "lease", "shutdown_timeout", "default_timeout"),
    *("log_level", "log_format", "process_slots", "process_memory_mib", "process_cpu"),
    *("process_max_jobs", "process_max_failures", "process_recycle_mib", "code_version"),
    *("recycle_jobs", "recycle_failures", "recycle_mib"),
)


def worker_command(app_name: str | None, flags: Mapping[str, Any], *more: str) -> list[str]:
    """The command line of one process, with every choice written out."""
    command = [sys.executable, "-m", "packhorse", "worker", "--processes", "1", *more]
    for names in flags["queues"]:
        command += ["--queues", ",".join(names)]
    for name in _VALUES:
        if flags.get(name) is not None:
            command += [f"--{name.replace('_', '-')}", str(flags[name])]
    if flags["burst"]:
        command.append("--burst")
    command.append("--banner" if flags["banner"] else "--no-banner")
    return command if app_name is None else [*command, app_name]


def run_supervised(app_name: str | None, flags: Mapping[str, Any]) -> int:
    """Be the parent of as many worker processes as are wanted; the exit code."""

    def command(first: bool) -> list[str]:  # noqa: FBT001 - called by the supervisor alone
        banner = flags["banner"] and first
        return worker_command(app_name, {**flags, "banner": banner}, "--in-process")

    address = None if flags["http"] is None else parse_address(flags["http"])

    folder = _watched_folder() if flags["reload"] else None

    async def run() -> int:
        supervisor = Supervisor(
            command, flags["processes"], clock=SystemClock(), chance=SystemChance()
        )
        async with probes(supervisor, address) as bound:
            if bound is not None:
                note(f"Answering probes at http://{bound[0]}:{bound[1]}/livez")
            async with reloading(supervisor, folder):
                return await supervisor.run()

    from packhorse import logs

    logs.configure(flags["log_level"], flags["log_format"])
    return asyncio.run(run())


def _watched_folder() -> Path:
    """Where a changed file means new code; an error if nobody can watch it."""
    if find_spec("watchfiles") is None:
        raise ConfigError(
            "--reload needs the package watchfiles; install it with: pip install 'packhorse[dev]'"
        )
    return Path.cwd()
