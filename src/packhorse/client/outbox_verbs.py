# SPDX-License-Identifier: MIT
"""The verb of an app that declares an outbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packhorse.client.connection import Connection
from packhorse.core.options import stored_text

if TYPE_CHECKING:
    from packhorse.client.outbox import Outbox


class OutboxVerbs:
    """The verbs of an app that are about outboxes."""

    folder: str

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def outbox(self, engine: object, *, table: str = "packhorse_outbox") -> Outbox:
        """Let `tx=` take connections of a database that the store of this app is not in.

        `engine` is an SQLAlchemy Engine or AsyncEngine of PostgreSQL or SQLite, or a URL. What
        transactions ask for is written to `table` there, and this app's workers bring it to the
        store. Nothing is opened yet: `create()` of the answer makes the table.
        """
        # Few have one, and the others do not pay for it.
        from packhorse.client.outbox import Outbox, Outboxes  # noqa: PLC0415
        from packhorse.client.outbox.databases import database_of  # noqa: PLC0415

        name = stored_text(table, "outbox(): table")
        database, connection = database_of(engine, self.folder), self._connection
        made = Outbox(database, name, connection.clock)
        connection.outboxes = Outboxes((*connection.outboxes, made))
        connection.transactions.outboxes = connection.outboxes
        return made

    @property
    def outboxes(self) -> tuple[Outbox, ...]:
        """The outboxes that were declared."""
        return self._connection.outboxes
