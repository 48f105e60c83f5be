# SPDX-License-Identifier: MIT
"""`packhorse contract`: show, export, check, diff."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packhorse.cli.exits import ExitCode, NothingMatched
from packhorse.cli.options import app_option, json_option, task_choices
from packhorse.cli.output import did_you_mean, note, print_json, print_table, print_text

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.contract import Contract
    from packhorse.core.contract_changes import ContractChange
    from packhorse.core.versions import PayloadVersions
    from packhorse.task import Task

_file = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def contract() -> None:
    """Show, export, check and compare what tasks promise."""


@contract.command("show")
@click.argument("task", shell_complete=task_choices)
@json_option
@app_option
def show_contract(*, task: str, app_name: str | None, as_json: bool) -> None:
    """Show the whole contract of a task: as declared, and what is derived from its function."""
    document = _task(_app(app_name), task).contract.document()
    if as_json:
        print_json(document)
    else:
        print_text(_yaml(document))


@contract.command("export")
@click.argument("tasks", nargs=-1, metavar="[TASK]...", shell_complete=task_choices)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write TASK.yaml or TASK.json for each into this folder.",
)
@json_option
@app_option
def export_contracts(
    *, tasks: tuple[str, ...], output: Path | None, app_name: str | None, as_json: bool
) -> None:
    """Write the contracts of these tasks, or of all: to keep, to publish, to compare later."""
    app = _app(app_name)
    chosen = [_task(app, name) for name in tasks] or list(app.tasks.values())
    documents = {task.name: task.contract.document() for task in chosen}
    if output is not None:
        _write(output, documents, as_json=as_json)
    elif as_json:
        print_json(list(documents.values()))
    else:
        print_text("\n---\n".join(map(_yaml, documents.values())))


@contract.command("check")
@click.argument("files", nargs=-1, metavar="[FILE]...", type=_file)
@json_option
@app_option
@click.pass_context
def check_contracts(
    ctx: click.Context, *, files: tuple[Path, ...], app_name: str | None, as_json: bool
) -> None:
    """Check files with contracts, or without any the contracts of the app's tasks.

    A file must be a contract with valid schemas. Of a task every tool that its contract names must
    be registered. Exits with 1 if something is wrong.
    """
    problems = list(_problems_of_files(files) if files else _problems_of(_app(app_name)))
    if as_json:
        print_json([{"contract": name, "problem": problem} for name, problem in problems])
    for name, problem in () if as_json else problems:
        print_text(f"{name}: {problem}")
    if problems:
        ctx.exit(ExitCode.FAILED)
    note("All contracts are in order.")


@contract.command("diff")
@click.argument("old", type=click.Path(exists=True, path_type=Path))
@click.argument("new", type=_file, required=False)
@click.option("--task", help="The task to compare with. Default: the one with the id of OLD.")
@json_option
@app_option
@click.pass_context
def diff_contracts(
    ctx: click.Context,
    *,
    old: Path,
    new: Path | None,
    task: str | None,
    app_name: str | None,
    as_json: bool,
) -> None:
    """Tell what changes from OLD to NEW, or to the app's task, and who can live with it.

    OLD is a file, or a folder that `contract export --output` wrote: then every file of it is
    compared with the app's task of that id.

    Safe for callers: those who submit and read as before need not change. Safe for jobs: those that
    wait can be run, also because the task has upcasters from their version. Exits with 1 if it is
    not safe for both.
    """
    if old.is_file():
        found = _changes(old, new, task, app_name)
    elif new is None and task is None:
        found = list(_changes_of_all(old, app_name))
    else:
        raise click.UsageError("a folder is compared with the app's tasks: name no NEW or --task")
    callers, jobs = all(one.callers for one in found), all(one.jobs for one in found)
    if as_json:
        print_json({"callers": callers, "jobs": jobs, "changes": [asdict(one) for one in found]})
    else:
        if found:
            print_table(
                ("PLACE", "CALLERS", "JOBS", "CHANGE"),
                [(one.place, _safe(one.callers), _safe(one.jobs), one.text) for one in found],
            )
        note(f"For callers: {_safe(callers)}. For waiting jobs: {_safe(jobs)}.")
    if not (callers and jobs):
        ctx.exit(ExitCode.FAILED)


def _changes(
    old: Path, new: Path | None, task: str | None, app_name: str | None
) -> list[ContractChange]:
    from packhorse.core.contract_changes import changes
    from packhorse.core.contract_files import read_contract

    before = read_contract(old)
    return changes(before, *_newer(before, new, task, app_name))


def _changes_of_all(folder: Path, app_name: str | None) -> Iterator[ContractChange]:
    from packhorse.core.contract_changes import ContractChange

    files = sorted(path for path in folder.iterdir() if path.suffix in (".yaml", ".json"))
    if not files:
        raise NothingMatched(f"{folder} holds no contracts, *.yaml or *.json")
    for path in files:
        try:
            found = _changes(path, None, None, app_name)
        except NothingMatched:
            found = [ContractChange("task", "is gone", callers=False, jobs=False)]
        for change in found:
            yield replace(change, place=f"{path.stem}: {change.place}")


def _newer(
    before: Contract, new: Path | None, task: str | None, app_name: str | None
) -> tuple[Contract, PayloadVersions | None]:
    from packhorse.core.contract_files import read_contract

    if new is not None:
        if task is not None:
            raise click.UsageError("NEW and --task both say what to compare with; give one of them")
        return read_contract(new), None
    app = _app(app_name)
    if task is None:
        found = app.registry.by_worker_id(before.worker_id or "")
        task = before.worker_id or "" if found is None else found.name
    chosen = _task(app, task)
    return chosen.contract, chosen.definition.versions


def _app(app_name: str | None) -> Packhorse:
    from packhorse.cli.discovery import found_app

    return found_app(app_name).app


def _task(app: Packhorse, name: str) -> Task[..., Any]:
    definition = app.registry.get(name)
    if definition is None:
        known = list(app.tasks)
        hint = did_you_mean(name, known, f"there are {', '.join(known) or 'none'}")
        raise NothingMatched(f"the app has no task {name!r}; {hint}")
    return app.tasks[definition.name]


def _yaml(document: Mapping[str, Any]) -> str:
    from packhorse.core.contract_files import as_yaml

    return as_yaml(document).rstrip()


def _write(folder: Path, documents: Mapping[str, Mapping[str, Any]], *, as_json: bool) -> None:
    import msgspec

    folder.mkdir(parents=True, exist_ok=True)
    for name, document in documents.items():
        text = _yaml(document)
        if as_json:
            text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
        path = folder / f"{name}{'.json' if as_json else '.yaml'}"
        path.write_text(f"{text}\n", encoding="utf-8")
        note(f"Wrote {path}")


def _problems_of_files(files: Sequence[Path]) -> Iterator[tuple[str, str]]:
    from packhorse.core.contract_files import read_contract
    from packhorse.core.schemas import SchemaCheck
    from packhorse.errors import ConfigError

    for path in files:
        try:
            read = read_contract(path)
            SchemaCheck(read.inputs or {}, "inputs")
            SchemaCheck(read.outputs or {}, "outputs")
        except ConfigError as error:
            yield str(path), str(error)


def _problems_of(app: Packhorse) -> Iterator[tuple[str, str]]:
    from packhorse.errors import ConfigError

    for name, task in app.tasks.items():
        try:
            whole = task.contract
        except ConfigError as error:
            yield name, str(error)
            continue
        for tool in whole.tools_allowed or ():
            if tool not in app.registry.tools:
                yield name, f"the tool {tool!r} is not registered; call app.tool({tool!r}, ...)"


def _safe(safe: bool) -> str:  # noqa: FBT001 - a word for it
    return "safe" if safe else "not safe"
