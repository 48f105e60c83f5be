# SPDX-License-Identifier: MIT
"""The root command: it loads the others lazily, and ends every error with an exit code."""

from __future__ import annotations

import difflib
import os
import sys
import traceback
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

import click

from packhorse.cli.exits import ExitCode, exit_code_of
from packhorse.cli.output import lost_output
from packhorse.errors import PackhorseError
from packhorse.version import installed_version

#: Every command: where it is, and its line in `packhorse --help`.
COMMANDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "dev": ("packhorse.cli.dev:dev", "Run worker, schedules and dashboard while developing."),
        "worker": ("packhorse.cli.worker:worker", "Run jobs until told to stop."),
        "enqueue": ("packhorse.cli.enqueue:enqueue", "Submit a job, and wait for it if asked."),
        "jobs": ("packhorse.cli.jobs:jobs", "List, show, cancel and retry jobs."),
        "explain": ("packhorse.cli.explain:explain", "Tell why a job is not running."),
        "contract": ("packhorse.cli.contract:contract", "Show and compare what tasks promise."),
        "check": ("packhorse.cli.check:check", "List waiting jobs that this code could not run."),
        "queues": ("packhorse.cli.queues:queues", "List, pause, close and limit queues."),
        "batches": ("packhorse.cli.batches:batches", "Show, watch, cancel, retry batches."),
        "schedules": ("packhorse.cli.schedules:schedules", "Show, run, pause, change schedules."),
        "workflows": ("packhorse.cli.workflows:workflows", "Show, cancel and retry workflows."),
        "topics": ("packhorse.cli.topics:topics", "Show topics, and publish an event."),
        "dead": ("packhorse.cli.dead:dead", "List, show, redrive and purge dead letters."),
        "workers": ("packhorse.cli.workers:workers", "List workers."),
        "alerts": ("packhorse.cli.alerts:alerts", "List, add, remove, test and silence alerts."),
        "breakers": ("packhorse.cli.breakers:breakers", "List and reset circuit breakers."),
        "dashboard": ("packhorse.cli.dashboard:dashboard", "Serve the web API and the pages."),
        "tokens": ("packhorse.cli.tokens:tokens", "Make, list and revoke tokens for the API."),
        "top": ("packhorse.cli.top:top", "Show queues, workers and running jobs, live."),
        "stats": ("packhorse.cli.stats:stats", "Show what was done and what waits."),
        "health": ("packhorse.cli.health:health", "Tell whether store and workers are there."),
        "doctor": ("packhorse.cli.doctor:doctor", "Look for common mistakes."),
        "migrate": ("packhorse.cli.migrate:migrate", "Create or upgrade the store's schema."),
        "keys": ("packhorse.cli.keys:keys", "Make encryption keys, and change to another."),
        "copy": ("packhorse.cli.copy:copy", "Carry jobs from one store to another."),
    }
)


class CommandLine(click.Group):
    """The root group. It imports a command when it is called, and turns errors into exit codes."""

    def __init__(
        self, *args: Any, commands_at: Mapping[str, tuple[str, str]], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.commands_at = commands_at  #: name -> ("module:attribute", its line in --help)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """List the names in the order of `COMMANDS`."""
        return list(self.commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import one command."""
        place = self.commands_at.get(cmd_name)
        if place is None:
            return None
        module, _, attribute = place[0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.commands_at.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest a similar one."""
        near = difflib.get_close_matches(args[0], self.commands_at, n=1)
        if args[0] not in self.commands_at and near and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; show what it raises."""
        try:
            return super().invoke(ctx)
        except PackhorseError as error:
            _explain(error, debug=bool(ctx.params.get("debug")))
            ctx.exit(exit_code_of(error))
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(ExitCode.INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise  # click handles these: usage, an answer of no, a closed pipe
        except OSError as error:
            lost = lost_output(error)
            if lost is None:
                _show_unexpected()
            else:
                _explain(lost, debug=False)
            ctx.exit(ExitCode.FAILED)
        except Exception:  # noqa: BLE001 - a mistake here or in user code: show where it is
            _show_unexpected()
            ctx.exit(ExitCode.FAILED)


def _show_unexpected() -> None:
    shown = _redacted(traceback.format_exc())
    click.echo(f"Error UNEXPECTED:\n{shown}", err=True, nl=False)


def _redacted(text: str) -> str:
    # Only what goes wrong pays for it.
    from packhorse.core.redaction import redact_default, redacted_text

    return redacted_text(redact_default, text)


def _explain(error: PackhorseError, *, debug: bool) -> None:
    if debug:
        lines = "".join(traceback.format_exception(error))
        click.echo(_redacted(lines), err=True, nl=False)
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
    if no_color:
        os.environ["NO_COLOR"] = "1"  # for log lines, and for the processes of a worker


def _color(*, no_color: bool) -> bool | None:
    """Tell whether to use colours; None leaves it to whether the output is a terminal."""
    if no_color or os.environ.get("NO_COLOR"):
        return False
    return True if os.environ.get("FORCE_COLOR", "0") not in ("", "0") else None


def main() -> None:
    """Run the `packhorse` command."""
    try:
        sys.exit(root(prog_name="packhorse"))
    except OSError as error:  # in --help and --version, which run before any command
        lost = lost_output(error)
        if lost is None:
            raise
        _explain(lost, debug=False)
        sys.exit(ExitCode.FAILED)
