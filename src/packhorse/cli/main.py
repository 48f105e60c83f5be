# SPDX-License-Identifier: MIT
"""The root command, and how every error ends."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import click

from packhorse.cli.exits import ExitCode, exit_code_of
from packhorse.cli.lazy import LazyGroup
from packhorse.cli.output import lost_output
from packhorse.cli.version import installed_version
from packhorse.errors import PackhorseError

__all__ = ["COMMANDS", "CommandLine", "main", "root"]

#: Every command: where it is, and its line in `packhorse --help`.
COMMANDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "worker": ("packhorse.cli.worker:worker", "Run jobs until told to stop."),
        "enqueue": ("packhorse.cli.enqueue:enqueue", "Submit a job, and wait for it if asked."),
        "jobs": ("packhorse.cli.jobs:jobs", "List, show, cancel and retry jobs."),
        "explain": ("packhorse.cli.explain:explain", "Tell why a job is not running."),
        "queues": ("packhorse.cli.queues:queues", "List, pause, drain and limit queues."),
        "dead": ("packhorse.cli.dead:dead", "List, show, redrive and purge dead letters."),
        "workers": ("packhorse.cli.workers:workers", "List workers."),
        "stats": ("packhorse.cli.stats:stats", "Show what was done and what waits."),
        "health": ("packhorse.cli.health:health", "Tell whether store and workers are there."),
        "doctor": ("packhorse.cli.doctor:doctor", "Look for common mistakes."),
        "migrate": ("packhorse.cli.migrate:migrate", "Create or upgrade the store's schema."),
        "copy": ("packhorse.cli.copy:copy", "Carry jobs from one store to another."),
    }
)


class CommandLine(LazyGroup):
    """The root group; what a command raises becomes one line and an exit code here."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except PackhorseError as error:
            _explain(error, debug=bool(ctx.params.get("debug")))
            ctx.exit(exit_code_of(error))
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(ExitCode.INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise  # click ends these itself: usage, an answer of no, a closed pipe
        except OSError as error:
            lost = lost_output(error)
            if lost is None:
                _show_unexpected()
            else:
                _explain(lost, debug=False)
            ctx.exit(ExitCode.FAILED)
        except Exception:  # noqa: BLE001 - a mistake of ours, or of user code: show where it is
            _show_unexpected()
            ctx.exit(ExitCode.FAILED)


def _show_unexpected() -> None:
    click.echo(f"Error UNEXPECTED:\n{traceback.format_exc()}", err=True, nl=False)


def _explain(error: PackhorseError, *, debug: bool) -> None:
    if debug:
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    click.echo(f"Error {error.code}: {error}", err=True)


def _show_version(ctx: click.Context, _option: click.Parameter, value: object) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"packhorse {installed_version()}")
        ctx.exit()


@click.group(
    cls=CommandLine,
    commands_at=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 failed, 2 usage, 3 store unreachable, 4 app not loaded, "
    "5 schema missing or out of date, 6 unhealthy, 7 nothing matched, 8 jobs abandoned, "
    "130/143 forced by a second signal.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and leave.",
)
@click.option("--debug", is_flag=True, envvar="PACKHORSE_DEBUG", help="Show tracebacks of errors.")
@click.option("--no-color", is_flag=True, help="Use no colours; so does NO_COLOR.")
@click.pass_context
def root(ctx: click.Context, *, debug: bool, no_color: bool) -> None:
    """Background work for Python that keeps its promises, and lets you check them.

    APP is module:attribute, or a module with one app in it. Without it PACKHORSE_APP, then
    [tool.packhorse] in pyproject.toml, then app.py, main.py, tasks.py and jobs.py are looked at.
    """
    del debug  # read where an error ends
    ctx.color = _color(no_color=no_color)


def _color(*, no_color: bool) -> bool | None:
    """Whether to use colours; None leaves it to whether the output is a terminal."""
    if no_color or os.environ.get("NO_COLOR"):
        return False
    return True if os.environ.get("FORCE_COLOR", "0") not in ("", "0") else None


def main() -> None:
    """Run the `packhorse` command."""
    try:
        sys.exit(root(prog_name="packhorse"))
    except OSError as error:  # of the help and the version, which are written before any command
        lost = lost_output(error)
        if lost is None:
            raise
        _explain(lost, debug=False)
        sys.exit(ExitCode.FAILED)
