# SPDX-License-Identifier: MIT
"""The outbox: a table in a user's database, for jobs of a store that is not in that database."""

from __future__ import annotations

from packhorse.client.outbox.outbox import Outbox, Outboxes, OutboxState

__all__ = ["Outbox", "OutboxState", "Outboxes"]
