# SPDX-License-Identifier: MIT
"""Values that a database which is not in UTF-8 can never hold."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from packhorse import Context, Packhorse, StoreRefused
from packhorse.core.clock import new_id
from tests.servers.postgres import PostgresServer
from tests.stores.refusing import (
    check_that_a_bad_error_is_told_in_plain_words,
    check_that_one_bad_result_is_a_dead_letter,
)

EMOJI = "a horse: \N{HORSE}"


@pytest.fixture
def app(own_server: PostgresServer) -> Iterator[Packhorse]:
    """An app whose database is in LATIN1."""
    name = f"latin1_{new_id().replace('-', '')}"
    with own_server.connect() as connection:
        connection.autocommit = True
        connection.execute(
            f"create database {name} encoding 'LATIN1' locale 'C' template template0".encode()
        )
    made = Packhorse(own_server.url(name))
    yield made
    made.close()


def test_a_result_it_cannot_hold_is_a_dead_letter_and_holds_no_other_up(app: Packhorse) -> None:
    check_that_one_bad_result_is_a_dead_letter(app, EMOJI)


def test_an_error_it_cannot_hold_is_told_in_plain_words(app: Packhorse) -> None:
    check_that_a_bad_error_is_told_in_plain_words(app, EMOJI)


def test_a_note_it_cannot_hold_is_told_in_plain_words(app: Packhorse) -> None:
    @app.task
    async def work(ctx: Context) -> str:
        ctx.progress(1, 2, EMOJI)
        return "done"

    job = work.enqueue()
    app.run(burst=True)

    progress = job.info().progress
    assert job.result(timeout=0) == "done"
    assert progress is not None
    assert (progress.done, progress.note) == (1, r"a horse: \U0001f40e")


def test_a_submit_it_cannot_hold_says_so(app: Packhorse) -> None:
    @app.task
    def work(text: str) -> None: ...

    with pytest.raises(StoreRefused, match=r"can never hold this value.*ENCODING 'UTF8'"):
        work.enqueue(EMOJI)
    with pytest.raises(StoreRefused, match="can never hold this value"):
        asyncio.run(work.aenqueue(EMOJI))
    assert app.depth("default") == 0
