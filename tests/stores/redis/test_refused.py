# SPDX-License-Identifier: MIT
"""Values that are larger than a server ever takes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from packhorse import Packhorse, StoreRefused
from packhorse.core.job import NewJob
from packhorse.stores.redis.connection import RedisConnection
from packhorse.stores.redis.settings import Address
from tests.servers.redis import RedisServer
from tests.stores.refusing import check_that_one_bad_result_is_a_dead_letter

MIB = 1024 * 1024


@pytest.fixture
def app(server: RedisServer) -> Iterator[Packhorse]:
    """An app on a server that takes no value over 1 MiB."""
    server.ask("CONFIG", "SET", "proto-max-bulk-len", MIB)
    made = Packhorse(server.url)
    yield made
    made.close()


def test_a_result_it_cannot_hold_is_a_dead_letter_and_holds_no_other_up(app: Packhorse) -> None:
    check_that_one_bad_result_is_a_dead_letter(app, "x" * (2 * MIB))


def test_a_submit_it_cannot_hold_says_so(app: Packhorse) -> None:
    large = NewJob(id="large", task="work", payload=b'"' + b"x" * (2 * MIB) + b'"')

    with pytest.raises(StoreRefused, match="raise its proto-max-bulk-len"):
        app.store.run(app.store.jobs.submit([large]))
    with pytest.raises(StoreRefused, match="raise its proto-max-bulk-len"):
        asyncio.run(app.store.arun(app.store.jobs.submit([large])))
    assert app.depth("default") == 0


def test_a_server_that_closes_in_the_middle_of_a_request_is_heard() -> None:
    ours, theirs = socket.socketpair()
    connection = RedisConnection(ours, Address("127.0.0.1", 1), "redis")
    theirs.sendall(b"-ERR Protocol error: invalid bulk length\r\n")
    theirs.close()

    reply = connection.ask(b"x" * MIB)

    assert "invalid bulk length" in str(reply)
