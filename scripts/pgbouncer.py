# SPDX-License-Identifier: MIT
"""The PostgreSQL tests through a real PgBouncer in transaction mode.

    python -m scripts.pgbouncer [options of pytest]

Takes `pgbouncer` from the path, or fetches Debian's package and unpacks it into a folder of its
own; nothing is installed. A private PostgreSQL server stands behind it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from scripts.debian import libraries, unpack
from scripts.pytest_runs import run_pytest
from tests.servers.postgres import VARIABLE, PostgresServer

#: What of the suite is run when no options are given: every promise, with both runners.
TESTS: Final = ("tests/conformance/test_postgres.py", "-q", "-n", "2", "--conformance", "all")
#: The package and what Debian's slim images lack of its libraries.
PACKAGES: Final = ("pgbouncer", "libevent-2.1-7", "libc-ares2")
#: Fewer connections to the server than the tests open: code that keeps state on a connection fails.
POOL: Final = 8
SETTINGS: Final = """\
[databases]
* = host=127.0.0.1 port={server_port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
max_client_conn = 500
default_pool_size = {pool}
logfile = {folder}/log
"""


def main(options: list[str]) -> int:
    """Run the tests; the exit code is pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="packhorse-pgbouncer-"))
    folder.chmod(0o755)
    server = PostgresServer()
    try:
        pooler, port = start(program(folder), folder, server.port)
        try:
            url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
            run = run_pytest(options or TESTS, {VARIABLE: url})
        finally:
            pooler.terminate()
            pooler.wait()
        print(f"through PgBouncer in transaction mode, {POOL} connections to the server: {run}")
        return run.code
    finally:
        server.remove()
        shutil.rmtree(folder, ignore_errors=True)


def program(folder: Path) -> Path:
    """Where PgBouncer is; fetched if it is not there."""
    found = shutil.which("pgbouncer")
    if found is not None:
        return Path(found)
    unpack(PACKAGES, folder)
    return folder / "usr" / "sbin" / "pgbouncer"


def start(pgbouncer: Path, folder: Path, server_port: int) -> tuple[subprocess.Popen[bytes], int]:
    """Start it in front of a server; it refuses to be root."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        SETTINGS.format(server_port=server_port, port=port, folder=folder, pool=POOL), "utf-8"
    )
    (folder / "users").write_text('"postgres" ""\n', "utf-8")
    user = "nobody" if os.geteuid() == 0 else None
    if user is not None:
        shutil.chown(folder, user)
    pooler = subprocess.Popen(  # noqa: S603 - our own program and options
        [str(pgbouncer), "-q", str(settings)],
        user=user,
        env={**os.environ, **libraries(folder)},
    )
    return pooler, port


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
