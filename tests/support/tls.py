# SPDX-License-Identifier: MIT
"""Certificates of our own, and a loopback proxy that speaks TLS in front of a real server.

The bundled servers are built without TLS; clients cannot tell, since it ends before the server.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from pathlib import Path
from typing import Final

import trustme

#: Bytes moved in one go.
_CHUNK: Final = 65_536
#: What a PostgreSQL client sends before TLS: its length, and the number of the request.
_SSL_REQUEST: Final = bytes((0, 0, 0, 8, 4, 210, 22, 47))
_PATIENCE_S: Final = 20.0


class Certificates:
    """An authority, and files of what it has signed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._authority = trustme.CA()
        self.authority_file = folder / "authority.pem"
        self._authority.cert_pem.write_to_path(self.authority_file)

    def serving(self, name: str, *, ask_clients: bool = False) -> ssl.SSLContext:
        """For a server of this name, which may ask who its clients are."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._authority.issue_cert(name).configure_cert(context)
        if ask_clients:
            context.verify_mode = ssl.CERT_REQUIRED
            self._authority.configure_trust(context)
        return context

    def client_files(self, name: str) -> tuple[Path, Path]:
        """The certificate and the key of a client."""
        issued = self._authority.issue_cert(f"{name}@example.org")
        cert, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        for number, part in enumerate(issued.cert_chain_pems):
            part.write_to_path(cert, append=number > 0)
        issued.private_key_pem.write_to_path(key)
        key.chmod(0o600)  # libpq refuses one that others may read
        return cert, key


class TlsProxy:
    """Ends TLS and carries what is inside to one server; `postgres` begins as that does."""

    def __init__(
        self, host: str, port: int, context: ssl.SSLContext, *, postgres: bool = False
    ) -> None:
        self.handshakes = 0  #: connections that are encrypted, or were
        self._target = (host, port)
        self._context = context
        self._postgres = postgres
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        """Cut every connection, and wait for the threads that serve one."""
        for end in (self._listening, *list(self._open)):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(_PATIENCE_S)
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self._open.add(client)
                thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            if self._postgres:
                if client.recv(len(_SSL_REQUEST)) != _SSL_REQUEST:
                    return  # a client that does without
                client.sendall(b"S")
            with (
                self._context.wrap_socket(client, server_side=True) as inside,
                socket.create_connection(self._target) as server,
            ):
                self.handshakes += 1
                self._open |= {inside, server}
                _carry(inside, server)


def _carry(client: ssl.SSLSocket, server: socket.socket) -> None:
    """Both ways in one thread: an encrypted socket is not for two."""
    while True:
        ends = [client] if client.pending() else select.select([client, server], [], [])[0]
        for end in ends:
            data = end.recv(_CHUNK)
            if not data:
                return
            (server if end is client else client).sendall(data)
