# SPDX-License-Identifier: MIT
"""Redis with an append-only file, behind a proxy for each who goes there.

Where there is a C compiler the server gets another clock, and tells what it has forced to the disk:
then its clock can be stepped, and a crash is that of the machine, which takes what the disk did not
have yet. Without one a crash is that of the server alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from faults.clocks import ClockFile
from faults.proxy import Proxy
from faults.stores.ground import Door, door_folder
from tests.servers.redis import RedisServer, free_port

_SHIM: Final = Path(__file__).with_name("shim.c")
_PAGE_VARIABLE: Final = "PACKHORSE_FAULTS_PAGE"
_COMPILE_S: Final = 60.0
_NUMBER: Final = 8  #: bytes


class RedisGround:
    """A private server."""

    name = "redis"
    clock = None
    can_restart = True

    def __init__(self, folder: Path, fsync: str = "always") -> None:
        self._fsync = fsync
        self._own = Path(tempfile.mkdtemp(prefix="packhorse-faults-"))
        self._page = self._own / "page"
        self._page.write_bytes(bytes(2 * _NUMBER))
        self._shim = _compiled(self._own)
        self.can_step = self._shim is not None
        options = ("--appendonly", "yes", "--appendfsync", fsync)
        whole = ("--auto-aof-rewrite-percentage", "0")  # one file, so that its length is known
        with self._loaded():
            self._server = RedisServer(self._own, *options, *whole, port=free_port())
        self.url = self._server.url
        self._clocks = door_folder(folder)
        self._proxies: list[Proxy] = []
        self.bytes_lost = 0  #: by crashes, of the append-only file

    def door(self, name: str) -> Door:
        proxy = Proxy(*self._server.address)
        self._proxies.append(proxy)
        return Door(f"redis://127.0.0.1:{proxy.port}", ClockFile(self._clocks / name), proxy)

    def restart(self) -> None:
        self._server.kill()
        if self._shim is not None:
            self._forget_what_was_not_forced()
        with self._loaded():
            self._server.start()

    def _forget_what_was_not_forced(self) -> None:
        file = self._own / "appendonly.aof"
        forced = int.from_bytes(self._page.read_bytes()[_NUMBER:], "little")
        written = file.stat().st_size
        self.bytes_lost += max(0, written - forced)
        os.truncate(file, min(written, forced))

    def pause(self) -> bool:
        self._server.pause()
        return True

    def resume(self) -> None:
        self._server.resume()

    def step(self, offset_us: int) -> None:
        file = os.open(self._page, os.O_WRONLY)
        try:
            os.pwrite(file, offset_us.to_bytes(_NUMBER, "little", signed=True), 0)
        finally:
            os.close(file)

    def facts(self) -> dict[str, str]:
        version = self._server.ask("INFO", "server")["redis_version"]
        power = "a restart is a power cut: what was not forced to the disk is gone"
        alone = "a restart is the end of the server alone: no C compiler was found"
        return {
            "store": f"Redis {version}, appendonly yes, appendfsync {self._fsync}; "
            f"{alone if self._shim is None else power}",
            "lost by restarts": f"{self.bytes_lost} bytes of the append-only file",
        }

    def close(self) -> None:
        for proxy in self._proxies:
            proxy.close()
        self._server.stop()
        shutil.rmtree(self._own, ignore_errors=True)

    @contextmanager
    def _loaded(self) -> Iterator[None]:
        """What is started meanwhile has the shim in front of its C library."""
        if self._shim is None:
            yield
            return
        os.environ.update({"LD_PRELOAD": str(self._shim), _PAGE_VARIABLE: str(self._page)})
        try:
            yield
        finally:
            del os.environ["LD_PRELOAD"], os.environ[_PAGE_VARIABLE]


def _compiled(folder: Path) -> Path | None:
    """Compile the shim; None without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    made = folder / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(_SHIM)]
    done = subprocess.run(command, capture_output=True, timeout=_COMPILE_S, check=False)
    return made if done.returncode == 0 else None
