# SPDX-License-Identifier: MIT
"""`packhorse enqueue`: submit a job, and wait for its result if asked."""

from __future__ import annotations

import difflib
import re
import warnings
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

import click
import msgspec

from packhorse.cli.exits import NotFinished
from packhorse.cli.options import app_option, json_option
from packhorse.cli.parameters import duration
from packhorse.cli.render import note, print_json, print_text
from packhorse.errors import ConfigError, JobError, ResultTimeout
from packhorse.job import PRIORITY_BY_NAME

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.handle import JobHandle
    from packhorse.options import CallOptions
    from packhorse.task import Task

__all__ = ["enqueue", "parse_arguments"]

_NAMED: Final = re.compile(r"([^\W\d]\w*)=(.*)", re.DOTALL)


class _Flags(TypedDict):
    app_name: str | None
    wait: bool
    timeout: str | None
    as_json: bool
    queue: str | None
    priority: str | None
    delay: str | None
    tenant: str | None
    tag: tuple[str, ...]
    job_id: str | None


class _Enqueue(click.Command):
    """A command that knows why somebody gives it the option -2."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if not error.option_name.lstrip("-").isdecimal():
                raise
            raise click.UsageError(
                f"no such option {error.option_name!r}; before a negative number stands --, as in "
                "'packhorse enqueue add -- 1 -2'",
                ctx,
            ) from None


@click.command(cls=_Enqueue)
@click.argument("task_name", metavar="TASK")
@click.argument("arguments", metavar="[ARGS]...", nargs=-1)
@click.option("--wait", is_flag=True, help="Wait until it has finished, and print its result.")
@click.option("--timeout", type=duration, help="With --wait: wait no longer than this.")
@click.option("--queue", help="Another queue than the task's.")
@click.option("--priority", type=click.Choice(list(PRIORITY_BY_NAME)), help="What runs first.")
@click.option("--delay", type=duration, help="Run it no sooner than in so long.")
@click.option("--tenant", help="Whom the job belongs to.")
@click.option("--tag", multiple=True, help="A tag; may be given several times.")
@click.option("--id", "job_id", help="The job's id; a second submit of one id is the same job.")
@app_option
@json_option
def enqueue(task_name: str, arguments: tuple[str, ...], **flags: Unpack[_Flags]) -> None:
    """Submit a job of TASK and print its id, or with --wait its result as JSON.

    ARGS are JSON values, by position or as name=value; what is not JSON is a text. A text that
    looks like JSON needs quotes of its own: '"2026"'. Before a negative number write --.

        packhorse enqueue add 1 2 --wait

        packhorse enqueue send_email to=a@example.com subject='Good morning'
    """
    if flags["timeout"] and not flags["wait"]:
        raise click.UsageError("--timeout says how long to wait, so it needs --wait")
    from packhorse.cli.target import found_app

    app = found_app(flags["app_name"]).app
    try:
        _refuse_memory(app)
        job, task = _submitted(app, task_name, arguments, _choices(flags))
        if flags["wait"]:
            _tell(job, flags, result=_awaited(app, job, task, flags))
        else:
            _tell(job, flags)
    finally:
        app.close()


def parse_arguments(arguments: tuple[str, ...]) -> tuple[list[Any], dict[str, Any]]:
    """Values by position and by name."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for argument in arguments:
        match = _NAMED.fullmatch(argument)
        if match is None:
            if named:
                raise click.UsageError(
                    f"{argument!r} has no name and comes after one that has; put it first, or "
                    "write it as name=value"
                )
            positional.append(_value(argument))
        elif match[1] in named:
            raise click.UsageError(f"{match[1]} is given twice")
        else:
            named[match[1]] = _value(match[2])
    return positional, named


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return text


def _submitted(
    app: Packhorse, task_name: str, arguments: tuple[str, ...], choices: CallOptions
) -> tuple[JobHandle[Any], Task[..., Any]]:
    definition = app.registry.get(task_name)
    if definition is None:
        near = difflib.get_close_matches(task_name, app.registry.names, n=1)
        known = ", ".join(app.registry.names) or "none"
        hint = f"did you mean {near[0]!r}?" if near else f"declared are: {known}"
        raise ConfigError(f"the app has no task {task_name!r}; {hint}")
    task = app.tasks[definition.name]
    positional, named = parse_arguments(arguments)
    with warnings.catch_warnings():
        # A large payload is logged too, and a line of ours is nothing the user could change.
        warnings.filterwarnings("ignore", "a payload of task ", UserWarning)
        return task.using(**choices).enqueue(*positional, **named), task


def _choices(flags: _Flags) -> CallOptions:
    given = {
        "queue": flags["queue"],
        "priority": flags["priority"],
        "delay": flags["delay"],
        "tenant": flags["tenant"],
        "tags": flags["tag"] or None,
        "job_id": flags["job_id"],
    }
    kept: Any = {name: value for name, value in given.items() if value is not None}
    choices: CallOptions = kept
    return choices


def _refuse_memory(app: Packhorse) -> None:
    if app.store.label.startswith("memory:"):
        raise ConfigError(
            "the app's store is memory://, so the job would be gone with this command; give the "
            "app a URL such as sqlite:///jobs.db"
        )


def _awaited(app: Packhorse, job: JobHandle[Any], task: Task[..., Any], flags: _Flags) -> str:
    """The result as JSON; who waits in vain hears which job it is that goes on or has ended."""
    try:
        _warn_of_idleness(app, job)
        result = job.result(timeout=flags["timeout"])
    except KeyboardInterrupt:
        note(f"Job {job.id} is stored and goes on; see it with 'packhorse jobs show {job.id}'.")
        if flags["as_json"]:
            print_json(_document(job))
        raise
    except JobError as error:
        told = NotFinished(error) if isinstance(error, ResultTimeout) else error
        if flags["as_json"]:
            print_json({**_document(job), "error": {"code": told.code, "message": str(told)}})
        raise told from error
    return task.definition.signature.encode_result(result)


def _warn_of_idleness(app: Packhorse, job: JobHandle[Any]) -> None:
    queue = job.info().queue
    if not any(worker.live and queue in worker.queues for worker in app.insights.workers()):
        note(f"No live worker serves queue {queue}; waiting for one.")


def _tell(job: JobHandle[Any], flags: _Flags, result: str | None = None) -> None:
    if flags["as_json"]:
        document = _document(job)
        if result is not None:
            document["result"] = msgspec.Raw(result.encode())
        print_json(document)
        return
    if job.deduplicated:
        note(f"Job {job.id} was there already; nothing new was stored.")
    print_text(job.id if result is None else result)


def _document(job: JobHandle[Any]) -> dict[str, Any]:
    return {"id": job.id, "deduplicated": job.deduplicated}
