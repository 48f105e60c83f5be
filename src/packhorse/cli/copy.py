# SPDX-License-Identifier: MIT
"""`packhorse copy`: carry waiting and dead jobs from one store to another."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import click

from packhorse.cli.exits import ExitCode, StoreMissing
from packhorse.cli.options import NAME, confirm_options, json_option
from packhorse.cli.output import confirm, note, print_json, print_text, show_progress
from packhorse.core.text import counted
from packhorse.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from packhorse.cli.store_copy import Comparison, Copier, CopyTally, Remaining
    from packhorse.stores.protocol import Store

_BATCH: Final = 500
_BATCH_MAX: Final = 10_000


@click.command()
@click.option(
    "--from", "source_url", type=NAME, required=True, metavar="URL", help="The store to read."
)
@click.option("--to", "target_url", type=NAME, metavar="URL", help="The store to fill.")
@click.option("--undo", is_flag=True, help="Let the store that was copied be used again.")
@click.option("--queue", "-q", "queues", multiple=True, help="Only this queue; may be repeated.")
@click.option(
    "--batch",
    type=click.IntRange(1, _BATCH_MAX),
    default=_BATCH,
    show_default=True,
    help="Jobs carried in one transaction.",
)
@click.option("--force", is_flag=True, help="Copy although workers of the source are at work.")
@confirm_options
@json_option
def copy(
    source_url: str,
    target_url: str | None,
    *,
    undo: bool,
    queues: tuple[str, ...],
    batch: int,
    force: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Carry waiting, scheduled, retrying and dead jobs to another store, and compare both.

    With a batch or workflow come its jobs that have finished, and their results.

    Jobs keep their ids, counters, keys and order. What is in the target already is passed over, so
    a copy that was interrupted goes on when it is run again. The source keeps its jobs, and is
    marked unless only some queues are copied: workers, consumers and submits refuse it until
    --undo lifts the mark.
    """
    if undo == (target_url is not None):
        raise click.UsageError("give either --to, or --undo to lift the mark of an earlier copy")
    if target_url is None:
        _lift_mark(source_url, dry_run=dry_run, yes=yes)
        return
    from packhorse.cli.discovery import existing_store
    from packhorse.cli.store_copy import Copier, admit_all
    from packhorse.stores import open_store

    with closing(open_store(source_url)) as source, closing(open_store(target_url)) as target:
        copier = Copier(source, target, queues, batch)
        _refuse_same(source, target)
        existing_store(source)
        copier.refuse_unknown()
        _refuse_at_work(source, force=force)
        admit_all(source)
        if dry_run:
            _tell_plan(copier, as_json=as_json)
            return
        expected = copier.plan(target_exists=False).found.total()
        confirm(f"Carry {counted(expected, 'job')} to {target.label}?", yes=yes)
        _copy(copier, expected, as_json=as_json)


def _lift_mark(source_url: str, *, dry_run: bool, yes: bool) -> None:
    from packhorse.cli.discovery import existing_store
    from packhorse.stores import open_store

    with closing(open_store(source_url)) as source:
        existing_store(source)
        copied = source.run(source.transfer.copied())
        if copied is None:
            print_text(f"{source.label} has no mark of a copy")
        elif dry_run:
            print_text(f"Would lift the mark of the copy to {copied.to}")
        else:
            confirm(f"Use {source.label} again? Jobs in {copied.to} may run twice.", yes=yes)
            source.run(source.transfer.mark(None))
            print_text(f"{source.label} may be used again")


def _refuse_same(source: Store, target: Store) -> None:
    for store in (source, target):
        if store.label.startswith("memory:"):
            raise ConfigError(
                "memory:// lives inside the process that uses it; name a store that stays"
            )
    if source.label == target.label:
        raise UsageError(f"--from and --to are both {source.label}; name two stores")


def _exists(target: Store) -> bool:
    from packhorse.cli.discovery import existing_store

    try:
        existing_store(target)
    except StoreMissing:
        return False
    return True


def _refuse_at_work(source: Store, *, force: bool) -> None:
    """Refuse a source in use: a job that a worker claims meanwhile would run in both stores."""
    from packhorse.core.job import JobStatus

    counts = source.run(source.inspection.counts())
    running = sum(one.by_status.get(JobStatus.PROCESSING, 0) for one in counts)
    live = sum(worker.live for worker in source.run(source.leases.workers()))
    if not (running or live):
        return
    state = (
        f"{source.label} has {counted(live, 'live worker')} and {counted(running, 'running job')}"
    )
    if not force:
        raise UsageError(
            f"{state}; nothing was copied: stop its workers and let running jobs end, or add "
            "--force to carry only what waits"
        )
    note(f"{state}: running jobs stay there")


def _tell_plan(copier: Copier, *, as_json: bool) -> None:
    planned = copier.plan(target_exists=_exists(copier.target))
    left = copier.remaining(planned.found["completed"] + planned.found["cancelled"])
    if as_json:
        print_json(
            {
                "from": copier.source.label,
                "to": copier.target.label,
                "wouldCarry": dict(planned.found),
                "known": planned.known,
                "leftFinished": left.finished,
                "leftRunning": left.running,
            }
        )
        return
    parts = ", ".join(f"{number} {status}" for status, number in sorted(planned.found.items()))
    jobs = counted(planned.found.total(), "job")
    print_text(f"Would carry {jobs} to {copier.target.label}: {parts or 'none'}")
    print_text(f"There already, and passed over: {planned.known}")
    _tell_left(left, "Would leave")


def _tell_left(left: Remaining, verb: str) -> None:
    print_text(
        f"{verb} {counted(left.finished, 'finished job')} (completed or cancelled) in the source"
    )
    if left.running:
        print_text(f"{verb} {counted(left.running, 'running job')} in the source")


def _copy(copier: Copier, expected: int, *, as_json: bool) -> None:
    from packhorse.cli.store_copy import admit_all, carry_records
    from packhorse.core.clock import SystemClock
    from packhorse.stores.transfer import Copied

    source, target, whole = copier.source, copier.target, not copier.queues
    target.migrate()
    if whole:
        # Mark before the first job is in both; the target is in use from now on.
        source.run(source.transfer.mark(Copied(target.label, SystemClock().now_us())))
        admit_all(source)  # nothing is added from now on, save by transactions that are open
        target.run(target.transfer.mark(None))
    settings = copier.carry_settings()
    tally = copier.carry_jobs(lambda seen: show_progress(seen, expected))
    if whole and (records := carry_records(source, target)):
        settings.append(counted(records, "record"))
    compared = copier.compare(tally.conflicts)
    if as_json:
        print_json(_document(copier, settings, tally, compared))
    else:
        _tell(settings, tally, compared, copier.remaining(tally.finished))
    if tally.conflicts or not compared.equal:
        raise click.exceptions.Exit(ExitCode.FAILED)


def _tell(settings: list[str], tally: CopyTally, compared: Comparison, left: Remaining) -> None:
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
    copier: Copier, settings: list[str], tally: CopyTally, compared: Comparison
) -> dict[str, Any]:
    left = copier.remaining(tally.finished)
    return {
        "from": copier.source.label,
        "to": copier.target.label,
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
