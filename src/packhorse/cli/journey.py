# SPDX-License-Identifier: MIT
"""What `packhorse copy` does: refuses what cannot work, asks, carries, compares and tells."""

from __future__ import annotations

import sys
from typing import Any

import click

from packhorse.cli.confirming import confirm
from packhorse.cli.copying import (
    Comparison,
    Left,
    Survey,
    Tally,
    carry_jobs,
    carry_settings,
    compare,
    left_in,
    refuse_unknown,
    survey,
)
from packhorse.cli.exits import ExitCode, StoreMissing
from packhorse.cli.render import counted, note, print_json, print_text
from packhorse.cli.target import existing_store
from packhorse.errors import ConfigError, UsageError
from packhorse.job import JobStatus
from packhorse.stores import open_store
from packhorse.stores.protocol import Store

__all__ = ["carry"]


def carry(source_url: str, target_url: str, *, dry_run: bool, yes: bool, **options: Any) -> None:
    """Carry jobs from one store to another, or say how many it would be."""
    source, target = open_store(source_url), open_store(target_url)
    try:
        _refuse_same(source, target)
        existing_store(source)
        refuse_unknown(source, options["queues"])
        _refuse_at_work(source, force=options["force"])
        queues, batch = options["queues"], options["batch"]
        if dry_run:
            planned = survey(source, target if _exists(target) else None, queues, batch)
            left = left_in(source, queues)
            _tell_plan(source, target, planned, left, as_json=options["as_json"])
            return
        expected = survey(source, None, queues, batch).found.total()
        confirm(f"Carry {counted(expected, 'job')} to {target.label}?", yes=yes)
        _copy(source, target, expected, **options)
    finally:
        source.close()
        target.close()


def _refuse_same(source: Store, target: Store) -> None:
    for store in (source, target):
        if store.label.startswith("memory:"):
            raise ConfigError(
                "memory:// lives inside the process that uses it; name a store that stays"
            )
    if source.label == target.label:
        raise UsageError(f"--from and --to are both {source.label}; name two stores")


def _exists(target: Store) -> bool:
    """Whether there is something to look into; a dry run must not create it."""
    try:
        existing_store(target)
    except StoreMissing:
        return False
    return True


def _refuse_at_work(source: Store, *, force: bool) -> None:
    """A job that a worker takes meanwhile would run in both stores."""
    counts = source.run(source.inspection.counts())
    running = sum(one.by_status.get(JobStatus.PROCESSING, 0) for one in counts)
    live = sum(worker.live for worker in source.run(source.leases.workers()))
    if not (running or live):
        return
    told = (
        f"{source.label} has {counted(live, 'live worker')} and {counted(running, 'running job')}"
    )
    if not force:
        raise UsageError(
            f"{told}; nothing was copied: stop its workers and let running jobs end, or add "
            "--force to carry only what waits"
        )
    note(f"{told}: running jobs stay there")


def _tell_plan(source: Store, target: Store, planned: Survey, left: Left, *, as_json: bool) -> None:
    found = planned.found
    if as_json:
        print_json(
            {
                "from": source.label,
                "to": target.label,
                "wouldCarry": dict(found),
                "known": planned.known,
                "leftFinished": left.finished,
                "leftRunning": left.running,
            }
        )
        return
    parts = ", ".join(f"{number} {status}" for status, number in sorted(found.items()))
    print_text(f"Would carry {counted(found.total(), 'job')} to {target.label}: {parts or 'none'}")
    print_text(f"There already, and passed over: {planned.known}")
    _tell_left(left, "Would leave")


def _tell_left(left: Left, verb: str) -> None:
    print_text(
        f"{verb} {counted(left.finished, 'finished job')} (completed or cancelled) in the source"
    )
    if left.running:
        print_text(f"{verb} {counted(left.running, 'running job')} in the source")


def _copy(source: Store, target: Store, expected: int, **options: Any) -> None:
    queues, batch = options["queues"], options["batch"]
    target.migrate()
    settings = carry_settings(source, target, queues)
    tally = carry_jobs(source, target, queues, batch, lambda seen: _show(seen, expected))
    compared = compare(source, target, queues, batch, tally.conflicts)
    left = left_in(source, queues)
    if options["as_json"]:
        print_json(_document(source, target, settings, tally, compared, left=left))
    else:
        _tell(settings, tally, compared, left)
    if tally.conflicts or not compared.equal:
        raise click.exceptions.Exit(ExitCode.FAILED)


def _show(seen: int, expected: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{seen} of {expected} jobs", err=True, nl=seen >= expected)


def _tell(settings: list[str], tally: Tally, compared: Comparison, left: Left) -> None:
    print_text(f"Carried {counted(tally.carried, 'job')}; there already: {tally.known}")
    _tell_left(left, "Left")
    for one in settings:
        print_text(f"Carried {one}")
    for job_id in tally.conflicts:
        print_text(f"Left out {job_id}: another job of the target holds its key")
    for name, side in (("source", compared.source), ("target", compared.target)):
        print_text(f"{name}: {counted(side.jobs, 'job')}, sha256 sum {side.digest}")
    for job_id in compared.differing:
        print_text(f"Differs: {job_id}")
    print_text("Both are equal" if compared.equal else "They are NOT equal")


def _document(
    source: Store,
    target: Store,
    settings: list[str],
    tally: Tally,
    compared: Comparison,
    *,
    left: Left,
) -> dict[str, Any]:
    return {
        "from": source.label,
        "to": target.label,
        "carried": tally.carried,
        "known": tally.known,
        "leftFinished": left.finished,
        "leftRunning": left.running,
        "conflicts": tally.conflicts,
        "settings": settings,
        "source": {"jobs": compared.source.jobs, "digest": compared.source.digest},
        "target": {"jobs": compared.target.jobs, "digest": compared.target.digest},
        "differing": compared.differing,
        "equal": compared.equal,
    }
