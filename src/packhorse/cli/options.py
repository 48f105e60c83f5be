# SPDX-License-Identifier: MIT
"""Options and value types that several commands share, and their shell completion.

Every `--help` imports this module, so apps and stores are imported only when a command runs.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import click

from packhorse.core.durations import microseconds
from packhorse.errors import ConfigError

if TYPE_CHECKING:
    from packhorse.app import Packhorse

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

#: The fewest and the most worker processes.
Bounds = tuple[int, int]
#: What `store_command` adds.
_SHARED: Final = ("as_json", "url", "app_name")
#: A larger number is a typo.
_WORKERS_MAX: Final = 256


class _Name(click.ParamType[str]):
    """A text that names something; refuses an empty one, such as an unset shell variable."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value.strip():
            self.fail("it is empty; give a name, or leave the option out", param, ctx)
        return value


NAME: Final = _Name()


def duration(text: str) -> str:
    """Check a span such as `30`, `30s` or `1h30m`; return it as written."""
    try:
        microseconds(text)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    return text


def queue_names(text: str) -> tuple[str, ...]:
    """Split names of queues at commas."""
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise click.BadParameter("a name is missing beside a comma")
    return names


def capped(name: str) -> tuple[str, int | None]:
    """Divide `mail:10` into the queue and its cap; a name with another end has none."""
    bare, colon, cap = name.rpartition(":")
    return (bare, int(cap)) if colon and cap.isdecimal() else (name, None)


def reserved(text: str) -> dict[str, int]:
    """Read `critical=2,high=1`: slots kept for jobs of that priority, or a more urgent one."""
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, kept = part.strip().partition("=")
        if name not in _PRIORITIES or not kept.isdecimal() or int(kept) < 1 or name in found:
            raise click.BadParameter("write slots by priority, such as critical=2")
        found[name] = int(kept)
    return found


#: Priorities that slots can be reserved for.
_PRIORITIES = ("critical", "high", "normal", "low")


def bounds(text: str) -> Bounds:
    """Read `1..4`: at least one worker process, at most four."""
    least, dots, most = text.partition("..")
    if not (dots and least.strip().isdecimal() and most.strip().isdecimal()):
        raise click.BadParameter("write the fewest and the most workers, such as 1..4")
    found = int(least), int(most)
    if not 1 <= found[0] <= found[1] <= _WORKERS_MAX:
        raise click.BadParameter(f"give 1 to {_WORKERS_MAX} workers, the fewest first")
    return found


url_option = click.option(
    "--url",
    type=NAME,
    metavar="URL",
    help="The store, such as sqlite:///jobs.db. Default: PACKHORSE_URL, the file that "
    "PACKHORSE_URL_FILE names, or the app's store.",
)
app_option = click.option(
    "-A",
    "--app",
    "app_name",
    type=NAME,
    metavar="APP",
    help="The app, as module:attribute. Default: PACKHORSE_APP.",
)
own_url_option = click.option(
    "--url", type=NAME, metavar="URL", help="The store, instead of the app's own."
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document instead of text."
)
reset_budget_option = click.option(
    "--reset-budget", is_flag=True, help="Forget what they have spent with ctx.spend()."
)


yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
show_values_option = click.option(
    "--show-values", is_flag=True, help="Show values as they are: nothing is masked or cut."
)


def app_argument(command: Callable[..., R]) -> Callable[..., R]:
    """Add [APP] and --app, and pass the one that is given as `app_name`."""

    @click.argument("app_name", metavar="[APP]", required=False)
    @click.option(
        "-A", "--app", "named", type=NAME, metavar="APP", help="The app: another way to give APP."
    )
    @functools.wraps(command)
    def chosen(*args: Any, app_name: str | None, named: str | None, **kwargs: Any) -> R:
        if app_name is not None and named is not None:
            raise click.UsageError("APP and --app both say which app; give one of them")
        return command(*args, app_name=app_name if named is None else named, **kwargs)

    return chosen


def confirm_options(command: F) -> F:
    """Add --yes and --dry-run."""
    command = click.option("--dry-run", is_flag=True, help="Only say how many it would be.")(
        command
    )
    return yes_option(command)


def on_store(command: Callable[Concatenate[Packhorse, P], R]) -> Callable[..., R]:
    """Add --url and --app, and pass an app whose store exists to the command."""

    @url_option
    @app_option
    @functools.wraps(command)
    def chosen(*args: Any, url: str | None, app_name: str | None, **kwargs: Any) -> R:
        from packhorse.cli.discovery import existing_store, opened

        with opened(url, app_name) as app:
            existing_store(app.store)
            return command(app, *args, **kwargs)

    return chosen


def store_command(group: click.Group, name: str, **settings: Any) -> Callable[[F], click.Command]:
    """Declare a command of a group that works on a store (`on_store`), and may answer in JSON.

    Options that all commands have stand behind its own in --help.
    """

    def declare(function: F) -> click.Command:
        command = group.command(name, **settings)(json_option(on_store(function)))
        command.params.sort(key=lambda each: each.name in _SHARED)
        return command

    return declare


def queue_choices(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete a queue's name, also after a comma. Any failure offers nothing to the shell."""
    before, comma, part = incomplete.rpartition(",")
    with suppress(Exception):
        with closing(_completed_app(ctx)) as app:
            names = sorted({*app.known_queues, *_stored_queues(app)})
        return [f"{before}{comma}{name}" for name in names if name.startswith(part)]
    return []


def task_choices(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete a task's name. Any failure offers nothing to the shell."""
    with suppress(Exception):
        names = _completed_app(ctx).registry.names
        return [name for name in names if name.startswith(incomplete)]
    return []


def _completed_app(ctx: click.Context) -> Packhorse:
    """Find the app by the options before the cursor."""
    from pathlib import Path

    from packhorse.app import Packhorse
    from packhorse.cli.discovery import find_app

    url, name = ctx.params.get("url"), ctx.params.get("app_name") or ctx.params.get("named")
    if url is not None and name is None and ctx.command.name not in ("worker", "enqueue"):
        return Packhorse(url)
    app = find_app(name, folder=Path.cwd(), environment=os.environ).app
    if url is not None:
        app.use_store(url)
    return app


def _stored_queues(app: Packhorse) -> list[str]:
    from packhorse.cli.discovery import existing_store

    with suppress(Exception):
        existing_store(app.store)
        return [queue.name for queue in app.insights.queues()]
    return []
