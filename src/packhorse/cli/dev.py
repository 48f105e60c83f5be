# SPDX-License-Identifier: MIT
"""`packhorse dev`: worker, scheduler and dashboard in one, restarted when code changes.

This process supervises the worker and imports no user code. Another process loads changed code
first. If that fails, the error is shown, and the old code runs until the next change.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from packhorse.cli.exits import ExitCode
from packhorse.cli.options import app_argument, own_url_option
from packhorse.cli.output import note, print_text
from packhorse.cli.worker import (
    beside,
    changed_files,
    leave_when_told,
    set_up_logs,
    watched_folder,
    worker_command,
)
from packhorse.errors import PackhorseError

if TYPE_CHECKING:
    from packhorse.runtime.supervisor.supervisor import Supervisor

#: The store instead of memory://, which worker and dashboard could not share.
_FILE: Final = "sqlite:///packhorse.db"
_MEMORY: Final = "memory:"
_HOST: Final = "127.0.0.1"
#: The dashboard takes the first of these that is free.
_PORTS: Final = range(8_000, 8_020)
#: How long to wait for the dashboard to end; it has nothing to save.
_DASHBOARD_S: Final = 1.0
#: Code of the processes beside the worker; they end with this one.
_BOUND: Final = "from packhorse.runtime.supervisor.posix import die_with_parent as b; b(); "
_LOOK: Final = f"{_BOUND}from packhorse.cli.dev import look; look()"
_COMMAND: Final = f"{_BOUND}from packhorse.cli.main import main; main()"


@click.command()
@app_argument
@own_url_option
@click.option(
    "--port",
    type=click.IntRange(1, 65_535),
    help="The dashboard's port. Default: the first from 8000 on that is free.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error", "critical"], case_sensitive=False),
    default="info",
    show_default=True,
)
def dev(*, app_name: str | None, **flags: Any) -> None:
    """Run a worker, the schedules and the dashboard of APP while you write it.

    Everything is renewed when a Python file here changes; what runs may finish. Jobs are kept in
    the app's store, which is the file packhorse.db if it names none. Ctrl-C ends all of it.
    """
    import asyncio

    from packhorse.runtime.supervisor.posix import adopt_orphans

    leave_when_told()
    os.environ.pop("PACKHORSE_HTTP", None)  # of a worker alone
    set_up_logs({**flags, "log_format": "console", "log_config": None})
    adopt_orphans()
    session = _DevSession(app_name, flags, watched_folder())
    raise click.exceptions.Exit(asyncio.run(session.run()))


class _DevSession:
    """One run of the command."""

    def __init__(self, app: str | None, flags: Mapping[str, Any], folder: Path) -> None:
        import asyncio

        self._app = app
        self._flags = flags
        self._folder = folder
        self._changes = asyncio.Queue[str]()

    async def run(self) -> int:
        """Work until told to stop; return the exit code."""
        async with beside(self._watch()):
            while True:
                memory, code = await self._loaded(), int(ExitCode.APP_NOT_LOADED)
                if memory is not None:
                    code = await self._serve(memory=memory)
                if code != ExitCode.APP_NOT_LOADED:
                    return code
                note("Waiting for the next change.")
                await self._changes.get()

    async def _watch(self) -> None:
        async for reason in changed_files(self._folder):
            self._changes.put_nowait(reason)

    async def _loaded(self) -> bool | None:
        """Load the app elsewhere; return whether its store is in memory, None if that fails."""
        import asyncio

        command = [sys.executable, "-c", _LOOK, *(() if self._app is None else (self._app,))]
        process = _started(command, stdout=subprocess.PIPE)
        output, _ = await asyncio.to_thread(process.communicate)
        # The supervisor may have reaped it, so that its exit code is not known.
        return {"memory": True, "shared": False}.get(output.decode().rpartition(" ")[2].strip())

    async def _serve(self, *, memory: bool) -> int:
        from packhorse.core.clock import SystemChance, SystemClock
        from packhorse.runtime.supervisor.supervisor import Supervisor

        url = self._flags["url"] or (_FILE if memory else None)
        if url != self._flags["url"]:
            note(f"memory:// is inside one process: jobs are kept in {_FILE} instead.")
        flags = {**self._flags, "url": url, "log_format": "console", "queues": (), "include": ()}

        def command(first: bool) -> list[str]:  # noqa: FBT001 - called by the supervisor alone
            chosen = {**flags, "banner": first, "burst": False}
            return worker_command(self._app, chosen, "--in-process")

        dashboard = _DashboardProcess(self._app, url, self._flags["port"])
        note(f"Watching {self._folder} for changed Python files; Ctrl-C ends everything.")
        supervisor = Supervisor(command, 1, clock=SystemClock(), chance=SystemChance())
        try:
            async with beside(self._reload(supervisor, dashboard)):
                return await supervisor.run()
        finally:
            dashboard.end()

    async def _reload(self, supervisor: Supervisor, dashboard: _DashboardProcess) -> None:
        import asyncio

        while True:
            reason = await self._changes.get()
            if await self._loaded() is None:
                note("The code from before goes on; waiting for the next change.")
                continue
            supervisor.replace_all(reason)
            await asyncio.to_thread(dashboard.end)
            dashboard.start()


class _DashboardProcess:
    """The process of the dashboard; none if its packages are missing."""

    def __init__(self, app: str | None, url: str | None, port: int | None) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._command: list[str] = []
        if not all(map(find_spec, ("jinja2", "starlette", "uvicorn"))):
            note("There is no dashboard: install it with: pip install 'packhorse[dev]'")
            return
        named = [] if app is None else [app]
        chosen = [] if url is None else ["--url", url]
        bound = ["--port", str(_free_port() if port is None else port)]
        self._command = [sys.executable, "-c", _COMMAND, "dashboard", *named, *chosen, *bound]
        self.start()

    def start(self) -> None:
        """Start it."""
        if self._command:
            self._process = _started(self._command)

    def end(self) -> None:
        """End it, at once if it does not leave by itself."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_DASHBOARD_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _started(command: Sequence[str], **settings: Any) -> subprocess.Popen[bytes]:
    """Start a process that Ctrl-C does not reach: this one decides when it ends."""
    return subprocess.Popen(  # noqa: S603 - our own commands
        command, stdin=subprocess.DEVNULL, start_new_session=True, **settings
    )


def _free_port() -> int:
    for port in _PORTS:
        with socket.socket() as found, suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind((_HOST, port))
            return port
    return _PORTS[-1]  # the dashboard will say that the port is taken


def look() -> None:
    """Load the app that the first argument names, and say whether its store is in memory."""
    from packhorse.cli.discovery import find_app

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    named = sys.argv[1] if len(sys.argv) > 1 else None
    try:
        found = find_app(named, folder=Path.cwd(), environment=os.environ)
    except PackhorseError as error:
        note(f"Error {error.code}: {error}")
        sys.exit(ExitCode.APP_NOT_LOADED)
    in_memory = (found.app.url or "").startswith(_MEMORY)
    print_text(f"{found.name} {'memory' if in_memory else 'shared'}")
