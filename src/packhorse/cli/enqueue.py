# SPDX-License-Identifier: MIT
"""`packhorse enqueue`: submit a job, and wait for its result if asked."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from packhorse.cli.exits import NotFinished
from packhorse.cli.options import (
    NAME,
    app_option,
    duration,
    json_option,
    own_url_option,
    queue_choices,
    show_values_option,
    task_choices,
)
from packhorse.cli.output import did_you_mean, note, print_json, print_text
from packhorse.core.job import PRIORITY_BY_NAME
from packhorse.core.redaction import redacted
from packhorse.errors import ConfigError, JobError, ResultTimeout

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.core.options import CallOptions
    from packhorse.handle import JobHandle
    from packhorse.task import Task

_NAMED: Final = re.compile(r"([^\W\d]\w*)=(.*)", re.DOTALL)


class _Enqueue(click.Command):
    """A command that explains how to write a negative number."""

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
@click.argument("task_name", metavar="TASK", shell_complete=task_choices)
@click.argument("arguments", metavar="[ARGS]...", nargs=-1)
@click.option("--wait", is_flag=True, help="Wait until it has finished, and print its result.")
@click.option("--timeout", type=duration, help="With --wait: wait no longer than this.")
@click.option("--queue", help="Another queue than the task's.", shell_complete=queue_choices)
@click.option("--priority", type=click.Choice(list(PRIORITY_BY_NAME)), help="What runs first.")
@click.option("--delay", type=duration, help="Run it no sooner than in so long.")
@click.option("--tenant", type=NAME, help="The tenant the job belongs to.")
@click.option("--tag", "tags", multiple=True, help="A tag; may be given several times.")
@click.option("--id", "job_id", help="The job's id; a second submit of one id is the same job.")
@app_option
@own_url_option
@show_values_option
@json_option
def enqueue(task_name: str, arguments: tuple[str, ...], **flags: Any) -> None:
    """Submit a job of TASK and print its id, or with --wait its result as JSON.

    ARGS are JSON values, by position or as name=value; what is not JSON is a text. A text that
    looks like JSON needs quotes of its own: '"2026"'. Before a negative number write --.

        packhorse enqueue add 1 2 --wait

        packhorse enqueue send_email to=a@example.com subject='Good morning'
    """
    if flags["timeout"] and not flags["wait"]:
        raise click.UsageError("--timeout says how long to wait, so it needs --wait")
    from packhorse.cli.discovery import found_app

    with closing(found_app(flags["app_name"], url=flags["url"]).app) as app:
        _refuse_memory(app)
        job, task = _submitted(app, task_name, arguments, _choices(flags))
        if flags["wait"]:
            result = _awaited(app, job, task, flags)
            _tell(job, flags, result if flags["show_values"] else _redacted(app, result))
        else:
            _tell(job, flags)


def parse_arguments(arguments: tuple[str, ...]) -> tuple[list[Any], dict[str, Any]]:
    """Split values into those by position and those by name."""
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
        names = app.registry.names
        hint = did_you_mean(task_name, names, f"declared are: {', '.join(names) or 'none'}")
        raise ConfigError(f"the app has no task {task_name!r}; {hint}")
    task = app.tasks[definition.name]
    positional, named = parse_arguments(arguments)
    with warnings.catch_warnings():
        # A large payload is logged too, and the warning would name a line of this module.
        warnings.filterwarnings("ignore", "a payload of task ", UserWarning)
        return task.using(**choices).enqueue(*positional, **named), task


def _choices(flags: Mapping[str, Any]) -> CallOptions:
    names = ("queue", "priority", "delay", "tenant", "tags", "job_id")
    kept: Any = {name: flags[name] for name in names if flags[name] not in (None, ())}
    choices: CallOptions = kept
    return choices


def _refuse_memory(app: Packhorse) -> None:
    if app.store.label.startswith("memory:"):
        raise ConfigError(
            "the app's store is memory://, so the job would be gone with this command; give the "
            "app a URL such as sqlite:///jobs.db"
        )


def _awaited(
    app: Packhorse, job: JobHandle[Any], task: Task[..., Any], flags: Mapping[str, Any]
) -> str:
    """Wait for the result as JSON; name the job if there is none."""
    try:
        _warn_of_idleness(app, job)
        result = job.result(timeout=flags["timeout"])
    except KeyboardInterrupt:
        note(f"Job {job.id} is stored and goes on; see it with 'packhorse jobs show {job.id}'.")
        if flags["as_json"]:
            print_json(_document(job))
        raise
    except JobError as error:
        shown = NotFinished(error) if isinstance(error, ResultTimeout) else error
        if flags["as_json"]:
            print_json({**_document(job), "error": {"code": shown.code, "message": str(shown)}})
        raise shown from error
    return task.definition.signature.encode_result(result)


def _redacted(app: Packhorse, result: str) -> str:
    value = msgspec.json.decode(result)
    shown = redacted(app.bus.redact, value)
    return result if shown == value else msgspec.json.encode(shown).decode()


def _warn_of_idleness(app: Packhorse, job: JobHandle[Any]) -> None:
    queue = job.info().queue
    serving = [each for each in app.insights.workers() if each.live and queue in each.queues]
    if not serving:
        note(f"No live worker serves queue {queue}; waiting for one.")
    elif all(worker.quiet for worker in serving):
        note(f"Every live worker of queue {queue} is quiet; see 'packhorse workers resume'.")


def _tell(job: JobHandle[Any], flags: Mapping[str, Any], result: str | None = None) -> None:
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
