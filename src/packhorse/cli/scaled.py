# SPDX-License-Identifier: MIT
"""`packhorse worker --autoscale`: as many worker processes as the queues ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from packhorse.cli.fleet import ENDLESS, run_fleet, start_process
from packhorse.cli.parameters import Bounds
from packhorse.cli.processes import worker_command
from packhorse.cli.scaler import Scaler, bounded_rules
from packhorse.cli.serving import chosen_queues, chosen_run_options
from packhorse.cli.target import found_app
from packhorse.clock import SECOND_US, SystemClock
from packhorse.errors import ConfigError
from packhorse.running import run_options

__all__ = ["run_scaled"]


def _refuse_others(flags: Mapping[str, Any]) -> None:
    if flags["burst"] or flags["processes"] > 1:
        raise click.UsageError(
            "--autoscale decides by itself how many processes there are, and goes on until told to "
            "stop; leave --processes and --burst out"
        )
    if flags["http"] or flags["reload"] or flags["in_process"]:
        raise click.UsageError(
            "--autoscale runs several workers, which come and go; leave --http, --reload and "
            "--in-process out (`packhorse health` and `packhorse workers list` tell how they are)"
        )


def run_scaled(app_name: str | None, flags: Mapping[str, Any], chosen: Bounds) -> int:
    """Be the parent of as many worker processes, each under its own supervisor; the exit code."""
    _refuse_others(flags)
    found, clock = found_app(app_name, quiet=not flags["banner"]), SystemClock()
    app, options = found.app, chosen_run_options(flags)
    try:
        if app.store.label.startswith("memory:"):
            raise ConfigError(
                "memory:// lives inside one process, so processes cannot share its work; give the "
                "app a URL such as sqlite:///jobs.db"
            )
        app.store.migrate()
        effective = run_options(chosen_queues(flags["queues"]) or app.known_queues, options)
        rules = bounded_rules(effective.queues, app.scales, chosen)
        scaler = Scaler(app.store, rules, least=chosen[0], slots=effective.concurrency, clock=clock)
        command = worker_command(app_name, {**flags, "shutdown_timeout": ENDLESS, "banner": False})
        return run_fleet(
            lambda: start_process(command),
            scaler.wanted,
            shutdown_timeout_s=effective.shutdown_timeout_us / SECOND_US,
            clock=clock,
        )
    finally:
        app.close()
