# SPDX-License-Identifier: MIT
"""Select jobs for `jobs` and `dead`, by id or by filter, and change many of them.

Their `--help` imports this module, so stores are imported only when a command runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from packhorse.cli.exits import ExitCode, NothingMatched, PartTooShort
from packhorse.cli.options import NAME, duration, queue_choices, task_choices
from packhorse.cli.output import confirm, note, print_json, print_text, show_progress, tell_numbers
from packhorse.core.durations import microseconds
from packhorse.core.job import LOOK_MAX, PAGE_MAX, DeadReason, JobRecord, JobStatus
from packhorse.core.text import counted
from packhorse.errors import UsageError

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.stores.protocol import Store
    from packhorse.stores.requests import JobFilter

F = TypeVar("F", bound=Callable[..., Any])

REASON: Final = click.Choice([str(reason) for reason in DeadReason])
STATUS: Final = click.Choice([str(status) for status in JobStatus])

#: A shorter part of an id is not looked up.
_PART_MIN: Final = 4
#: Ids named when a part fits several.
_NAMED_MAX: Final = 5
#: Reads for a part of an id, of `LOOK_MAX` jobs each.
_LOOKS_MAX: Final = 400
#: Reads for all jobs that match a filter, of `LOOK_MAX` jobs each.
_WALK_MAX: Final = 20_000
#: Jobs one command works on; the next call takes the rest.
SELECTION_MAX: Final = 100_000
_PAGE: Final = 1_000
#: Jobs removed, or run again, in one transaction, so that workers get their turn in between.
_PURGE_BATCH: Final = 1_000
_REDRIVE_BATCH: Final = 100

#: The text of each `CancelAnswer` and `RedriveAnswer`.
_MEANING: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cancelled": "cancelled",
        "flagged": "running; its worker is told to stop it",
        "finished": "had finished already; nothing was changed",
        "redriven": "will run again",
        "refused": "is ready or running already, or a completed node; nothing was changed",
        "conflict": "another job has taken its key; nothing was changed",
        "unknown": "not found",
    }
)
_DONE: Final = frozenset({"cancelled", "flagged", "redriven"})


# ---------------------------------------------------------------------------------------- filters


def job_filter(
    store: Store, *, older_than: str | None, statuses: Iterable[str] = (), **filters: Any
) -> JobFilter:
    """Build the store's filter from options. Ages are counted by the store's clock."""
    from packhorse.stores.requests import JobFilter

    before_us = None
    if older_than is not None:
        now_us = store.run(store.inspection.outlook("", (), ())).now_us
        before_us = now_us - microseconds(older_than)
    chosen = tuple(JobStatus(status) for status in statuses)
    return JobFilter(statuses=chosen, created_before_us=before_us, **filters)


def filter_options(command: F) -> F:
    """Add --queue, --task, --tag, --tenant, --created-by and --older-than."""
    command = click.option(
        "--older-than", type=duration, help="Only jobs submitted longer ago than this."
    )(command)
    for name, meaning, choices in (
        ("--created-by", "Only jobs submitted by this.", None),
        ("--tenant", "Only jobs of this tenant.", None),
        ("--tag", "Only jobs with this tag.", None),
        ("--task", "Only jobs of this task.", task_choices),
        ("--queue", "Only jobs of this queue.", queue_choices),
    ):
        option = click.option(name, type=NAME, help=meaning, shell_complete=choices)
        command = option(command)
    return command


def page_options(command: F) -> F:
    """Add --limit and --after."""
    after = click.option("--after", metavar="PLACE", help="Go on where the page before ended.")
    limit = click.option(
        "--limit",
        type=click.IntRange(1, PAGE_MAX),
        default=50,
        show_default=True,
        help="At most so many.",
    )
    return limit(after(command))


def refuse_filters(filters: Mapping[str, Any]) -> None:
    """Refuse options that choose jobs beside ids."""
    if any(filters.values()):
        raise click.UsageError("give jobs by id, or options that choose them, not both")


# -------------------------------------------------------------------------------------------- ids


def whole_id(store: Store, part: str, *, tenant: str | None = None) -> str:
    """Complete the beginning or end of an id; return the text as given if no job fits."""
    from packhorse.stores.requests import JobFilter

    if store.run(store.inspection.job(part, tenant=tenant)) is not None:
        return part
    if len(part) < _PART_MIN:
        raise PartTooShort(part, _PART_MIN)
    found = _fitting(store, JobFilter(id_part=part, tenant=tenant))
    if len(found) > 1:
        raise UsageError(
            f"{part!r} is part of several ids: {', '.join(found[:_NAMED_MAX])}; give more of it"
        )
    return found[0] if found else part


def whole_ids(store: Store, parts: Iterable[str]) -> tuple[str, ...]:
    """Complete ids; each result appears once. Too short a part stays as it is."""
    found = (part if len(part) < _PART_MIN else whole_id(store, part) for part in parts)
    return tuple(dict.fromkeys(found))


def _fitting(store: Store, chosen: JobFilter) -> list[str]:
    """Return the ids that fit, stopping after several; every look at the store is bounded."""
    found: list[str] = []
    after: str | None = None
    for _ in range(_LOOKS_MAX):
        page = store.run(
            store.inspection.search(chosen, limit=_NAMED_MAX, after=after, most=LOOK_MAX)
        )
        found += [job.id for job in page.jobs]
        after = page.after
        if after is None or len(found) > 1:
            return found
    raise UsageError(
        f"{chosen.id_part!r} was looked for in the newest {_LOOKS_MAX * LOOK_MAX:,} jobs only, so "
        "that it may mean another one; give the whole id"
    )


# ------------------------------------------------------------------------------------- many jobs


@dataclass(frozen=True, slots=True)
class Selection:
    """The jobs that options choose."""

    chosen: JobFilter
    number: int
    more: bool = False  #: there are more than one command works on
    noun: str = "job"

    def __str__(self) -> str:
        jobs = counted(self.number, self.noun)
        return f"the first {jobs}" if self.more else jobs


def selected(
    app: Packhorse,
    filters: dict[str, Any],
    statuses: Iterable[JobStatus],
    *,
    noun: str = "job",
    which: str,
    none: str,
) -> Selection:
    """Select the jobs that options choose; refuse no options (`which`) and no jobs (`none`)."""
    from packhorse.stores.requests import JobFilter

    everything = filters.pop("everything")
    chosen = job_filter(app.store, **filters)
    if everything == (chosen != JobFilter()):
        raise click.UsageError(which)
    selection = select(app.store, chosen, statuses, noun)
    if not selection.number:
        raise NothingMatched(none)
    return selection


def select(
    store: Store, chosen: JobFilter, statuses: Iterable[JobStatus], noun: str = "job"
) -> Selection:
    """Count the jobs in these statuses that match a filter."""
    meant = msgspec.structs.replace(chosen, statuses=tuple(statuses))
    number = sum(len(page) for page in _pages(store, meant))
    return Selection(meant, min(number, SELECTION_MAX), number > SELECTION_MAX, noun)


def cancel_named(app: Packhorse, job_ids: Iterable[str]) -> list[tuple[str, str]]:
    """Cancel jobs by id; return the answer for each."""
    from packhorse import logs

    with logs.attached(app.bus):
        return [(job_id, _cancel(app, job_id)) for job_id in job_ids]


def cancel_selected(app: Packhorse, selection: Selection) -> Counter[str]:
    """Cancel at most as many as were counted; return the number of each answer.

    Each is a transaction of its own, so that workers get their turn in between.
    """
    from packhorse import logs

    with logs.attached(app.bus):
        pages = _selected_ids(app.store, selection)
        return Counter(_cancel(app, job_id) for job_ids in pages for job_id in job_ids)


def _cancel(app: Packhorse, job_id: str) -> str:
    from packhorse.core.generators import drive
    from packhorse.handle import cancelling

    return str(drive(cancelling(app.job(job_id)), app.store.run))


def redrive_selected(store: Store, selection: Selection, *, reset_budget: bool) -> Counter[str]:
    """Run at most as many again as were counted; return the number of each answer."""
    answers: Counter[str] = Counter()
    for job_ids in _selected_ids(store, selection):
        answers.update(redrive_all(store, job_ids, reset_budget=reset_budget))
    return answers


def redrive_named(
    store: Store, job_ids: Iterable[str], *, dry_run: bool, reset_budget: bool
) -> dict[str, int]:
    """Run dead jobs again by id; return how many matched, and the number of each answer."""
    dead_ids, counts = [], Counter(none_redriven())
    for job_id in dict.fromkeys(job_ids):
        record = store.run(store.inspection.job(job_id))
        if record is None:
            counts["unknown"] += 1
            note(f"{job_id}  not found")
        elif record.status is not JobStatus.DEAD:
            # Running a completed job again is a decision of its own.
            counts["refused"] += 1
            note(f"{job_id}  is {record.status}, not dead; see 'packhorse jobs retry'")
        else:
            dead_ids.append(job_id)
    if not dry_run:
        counts.update(redrive_all(store, dead_ids, reset_budget=reset_budget))
    return {"matched": len(dead_ids), **counts}


def redrive_all(store: Store, job_ids: Sequence[str], *, reset_budget: bool) -> Iterator[str]:
    """Run jobs again, in short transactions; yield the answer for each."""
    from packhorse.client.replies import forgotten

    forget = forgotten(reset_budget=reset_budget)
    for begin in range(0, len(job_ids), _REDRIVE_BATCH):
        part = job_ids[begin : begin + _REDRIVE_BATCH]
        answers = store.run(store.jobs.redrive(part, forget=forget))
        yield from map(str, answers)


def none_redriven() -> dict[str, int]:
    """Return a zero for every answer."""
    from packhorse.stores.requests import RedriveAnswer

    return {str(answer): 0 for answer in RedriveAnswer}


def purge_confirmed(
    store: Store, selection: Selection, *, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Ask, remove the selected jobs, and write how many; with `dry_run` only count them."""
    purged = 0
    if not dry_run:
        confirm(f"Remove {selection} for good?", yes=yes)
        purged = purge_selected(store, selection)
        if purged < selection.number:
            note("those left are jobs of batches and workflows that have not ended")
    tell_numbers({"matched": selection.number, "purged": purged}, as_json=as_json)


def purge_selected(store: Store, selection: Selection) -> int:
    """Remove at most as many as were counted, even if more match by now; return the number.

    If it is killed, the oldest are removed; the same command continues with the rest.
    """
    removed, after = 0, None
    for _ in range(_WALK_MAX):
        batch = min(selection.number - removed, _PURGE_BATCH)
        part = store.run(
            store.jobs.delete(selection.chosen, limit=batch, after=after, most=LOOK_MAX)
        )
        removed, after = removed + part.removed, part.after
        show_progress(removed, selection.number)
        if after is None or removed == selection.number:
            break
    return removed


def _selected_ids(store: Store, selection: Selection) -> Iterator[list[str]]:
    """Yield pages of ids, at most as many as were counted; show the progress after each."""
    left = selection.number
    for page in _pages(store, selection.chosen):
        yield [job.id for job in page[:left]]
        left -= min(left, len(page))
        show_progress(selection.number - left, selection.number)
        if not left:
            return


def _pages(store: Store, chosen: JobFilter) -> Iterator[tuple[JobRecord, ...]]:
    """Read matching jobs by bounded looks, at most one page more than one command works on.

    The place goes down with every page, so a job that dies again meanwhile is not read twice.
    """
    after: str | None = None
    number = 0
    for _ in range(_WALK_MAX):
        page = store.run(store.inspection.search(chosen, limit=_PAGE, after=after, most=LOOK_MAX))
        number += len(page.jobs)
        if page.jobs:
            yield page.jobs
        after = page.after
        if after is None or number > SELECTION_MAX:
            return


def tell_answers(answers: Iterable[tuple[str, str]], *, as_json: bool) -> None:
    """Write the answer for each job; exit with the code of the worst."""
    found = list(answers)
    if as_json:
        print_json({"results": [{"id": job_id, "answer": answer} for job_id, answer in found]})
    else:
        for job_id, answer in found:
            print_text(f"{job_id}  {_MEANING[answer]}")
    outcomes = {answer for _, answer in found}
    if "unknown" in outcomes:
        raise click.exceptions.Exit(ExitCode.NOTHING_MATCHED)
    if outcomes - _DONE:
        raise click.exceptions.Exit(ExitCode.FAILED)
