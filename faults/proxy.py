# SPDX-License-Identifier: MIT
"""A loopback proxy in front of a real server, to lose answers and hold up bytes with."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

#: Bytes moved in one go.
_CHUNK: Final = 65_536


class Proxy:
    """Carries bytes between clients and one server, until told otherwise.

    Without a port, `host` is the path of a server's socket.
    """

    def __init__(self, host: str, port: int = 0) -> None:
        self._target = (host, port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._flows = threading.Event()
        self._flows.set()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._doomed: Callable[[bytes], bool] | None = None
        self._muted: set[socket.socket] = set()
        self.answers_lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_answer_to(self, question: Callable[[bytes], bool]) -> None:
        """Once: what fits is carried to the server, its answer is waited for and thrown away.

        The connection is cut then, as if the cable had been.
        """
        self._doomed = question

    def hold(self) -> None:
        """Carry nothing, either way, until `let_go`; connections stay open."""
        self._flows.clear()

    def let_go(self) -> None:
        """Carry again, and what was held first."""
        self._flows.set()

    def say(self, words: bytes) -> None:
        """Say something to every client in the server's place, while it says nothing itself."""
        with self._lock:
            clients = [client for client, _ in self._pairs]
        for client in clients:
            with suppress(OSError):
                client.sendall(words)

    def cut(self) -> None:
        """Cut every connection there is."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _close(*pair)

    def close(self) -> None:
        """Listen no more, and cut what is left."""
        self._listening.close()
        self._flows.set()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = self._connected()
            except OSError:  # no server now, as between a server's end and its next start
                _close(client)
                continue
            with self._lock:
                self._pairs.append((client, server))
            for pump, ends in ((self._ask, (client, server)), (self._answer, (server, client))):
                threading.Thread(target=pump, args=ends, daemon=True).start()

    def _connected(self) -> socket.socket:
        path, port = self._target
        if port:
            return socket.create_connection(self._target)
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(path)
        except OSError:
            server.close()
            raise
        return server

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(_CHUNK):
                self._flows.wait()
                doomed = self._doomed
                if doomed is not None and doomed(data):
                    self._doomed = None
                    self._muted.add(client)
                server.sendall(data)
        _close(client, server)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(_CHUNK):
                self._flows.wait()
                if client in self._muted:  # the server has done it; drop its answer
                    self.answers_lost += 1
                    break
                client.sendall(data)
        _close(client, server)


def _close(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
