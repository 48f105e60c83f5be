# SPDX-License-Identifier: MIT
"""`packhorse check`: before a deploy, which of the waiting jobs this code could not run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from packhorse.cli.exits import ExitCode
from packhorse.cli.options import (
    app_argument,
    json_option,
    own_url_option,
    queue_choices,
    queue_names,
)
from packhorse.cli.output import note, print_json, print_table, show_progress

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.client.registry import TaskDefinition
    from packhorse.core.job import Job, NewJob
    from packhorse.runtime.worker.handlers import HandlerBook
    from packhorse.stores.protocol import Store

#: Jobs read at once: no more are in memory.
_PAGE: Final = 100
#: Ids that are named for each group, and groups that are kept apart.
_EXAMPLES: Final = 5
_GROUPS_MAX: Final = 1_000
_OTHERS: Final = "and others"


@dataclass(frozen=True)
class _Misfit:
    """Why this code could not run a job; no value of its payload is in it."""

    problem: str  #: `unknown_task`, `undecodable`, `other_version`, `invalid_request`
    task: str
    version: str | None = None  #: of the payload, where it has one
    detail: str = ""


@dataclass
class _Group:
    count: int = 0
    examples: list[str] = field(default_factory=list)


@click.command()
@app_argument
@own_url_option
@click.option(
    "-q",
    "--queues",
    multiple=True,
    type=queue_names,
    shell_complete=queue_choices,
    help="Only jobs of these queues, with commas between.",
)
@json_option
def check(
    *,
    app_name: str | None,
    url: str | None,
    queues: tuple[tuple[str, ...], ...],
    as_json: bool,
) -> None:
    """List the waiting jobs that the code of APP could not run. Run it before a deploy.

    Looks at every job that is pending, queued or waits for a retry: is its task known, can its
    payload be read, is there a way from its version to that of now, does it fit the contract. Shows
    how many there are of each kind, and the ids of some; never what is in them. Jobs that were
    submitted with tx= are taken in first, as a worker does; else nothing is changed. Exits with 1
    if there are any.
    """
    from packhorse.cli.discovery import existing_store, found_app
    from packhorse.cli.store_copy import admit_all

    with closing(found_app(app_name, url=url).app) as app:
        existing_store(app.store)
        admit_all(app.store)
        looked, groups = _survey(app, [name for some in queues for name in some])
    _tell(looked, groups, as_json=as_json)
    if groups:
        raise click.exceptions.Exit(ExitCode.FAILED)


def _survey(app: Packhorse, queues: Sequence[str]) -> tuple[int, Mapping[_Misfit, _Group]]:
    """Count the waiting jobs, and group those that do not fit by what is wrong."""
    from packhorse.core.clock import SECOND_US
    from packhorse.runtime.worker.handlers import HandlerBook

    groups: dict[_Misfit, _Group] = {}
    handlers, looked = HandlerBook(app.registry, {}, SECOND_US), 0
    for new in _waiting(app.store, queues):
        looked += 1
        found = _misfit(app, handlers, new)
        if found is None:
            continue
        if found not in groups and len(groups) >= _GROUPS_MAX:
            found = _Misfit(found.problem, _OTHERS)
        group = groups.setdefault(found, _Group())
        group.count += 1
        if len(group.examples) < _EXAMPLES:
            group.examples.append(new.id)
    return looked, groups


def _waiting(store: Store, queues: Sequence[str]) -> Iterator[NewJob]:
    """Yield every waiting job, also those stashed behind another job of their key."""
    from packhorse.cli.store_copy import PAGES_MAX
    from packhorse.client.sealed_store import SealedStore
    from packhorse.core.job import WAITING, JobStatus

    sealer = store.sealer if isinstance(store, SealedStore) else None
    counts = store.run(store.inspection.counts())
    read = [*WAITING, JobStatus.DEAD]
    expected = sum(one.by_status.get(status, 0) for one in counts for status in read)
    after, seen = None, 0
    for _ in range(PAGES_MAX):
        page = store.run(store.transfer.carry_out(after=after, limit=_PAGE))
        for one in page.jobs:
            if one.status in WAITING and (not queues or one.job.queue in queues):
                found = [new for new in (one.job, one.stashed) if new is not None]
                yield from found if sealer is None else sealer.open_jobs(found)
        seen, after = seen + len(page.jobs), page.after
        if expected > _PAGE:
            show_progress(min(seen, expected) if after is not None else expected, expected)
        if after is None:
            return


def _misfit(app: Packhorse, handlers: HandlerBook, new: NewJob) -> _Misfit | None:
    """Read the arguments of a job as a worker of the app would; tell what is wrong with them."""
    from packhorse.core.versions import OtherVersion
    from packhorse.runtime.worker import handlers as reading

    definition = app.registry.get(new.task)
    version = None if new.options is None else new.options.version
    if definition is None:
        return _Misfit("unknown_task", new.task, version)
    job = _claimed(new)
    plan = handlers.find(job)
    try:
        for each in reading.items_of(plan, job):
            reading.read_arguments(plan.item or plan, each)
    except OtherVersion as error:
        detail = f"this code has {definition.version!r}{_why(error, definition, version)}"
        return _Misfit("other_version", new.task, version, detail)
    except reading.UnreadableArguments as error:
        if not reading.is_readable(plan, job.payload):
            return _Misfit("undecodable", new.task, version)
        return _Misfit("invalid_request", new.task, version, _place(error, definition))
    return None


def _claimed(new: NewJob) -> Job:
    """Return a job as a worker would claim it."""
    import msgspec

    from packhorse.context import detached_job

    options = None if new.options is None else msgspec.json.encode(new.options).decode()
    return msgspec.structs.replace(
        detached_job(new.task),
        id=new.id,
        queue=new.queue,
        tenant=new.tenant,
        payload=new.payload.decode("utf-8", "surrogateescape"),
        options=options,
    )


def _why(error: Exception, definition: TaskDefinition, version: str | None) -> str:
    versions, cause = definition.versions, error.__cause__
    if version is not None and versions is not None and not versions.leads_from(version):
        return ", and no upcaster leads there"
    # The message of an upcaster's error may quote the payload, so show only its type.
    return f"; {_place(error, definition) or type(cause).__name__}"


def _place(error: Exception, definition: TaskDefinition) -> str:
    """Name the argument that does not fit, unless the name comes from the payload."""
    from packhorse.contract import KEY_INPUT

    field: Any = getattr(error.__cause__, "field", None)
    if not isinstance(field, str) or not field:
        return ""
    name = field.partition(".")[0].partition("[")[0]
    schema = None if definition.bound is None else definition.bound.contract.inputs
    known = {*definition.names, *((schema or {}).get("properties", ())), KEY_INPUT}
    return f"argument {name!r}" if name in known else "an argument that it does not take"


def _tell(looked: int, groups: Mapping[_Misfit, _Group], *, as_json: bool) -> None:
    from packhorse.core.text import counted

    ordered = sorted(groups.items(), key=lambda pair: -pair[1].count)
    total = sum(group.count for group in groups.values())
    if as_json:
        found = [{**asdict(why), **asdict(group)} for why, group in ordered]
        print_json({"jobs": looked, "misfits": total, "groups": found})
        return
    if ordered:
        headers = ("JOBS", "PROBLEM", "TASK", "VERSION", "DETAIL", "EXAMPLES")
        rows = [
            (
                *(group.count, why.problem, why.task, why.version, why.detail),
                " ".join(group.examples),
            )
            for why, group in ordered
        ]
        print_table(headers, rows, wrapped=True)
    note(f"{counted(looked, 'waiting job')}: this code could not run {total} of them.")
