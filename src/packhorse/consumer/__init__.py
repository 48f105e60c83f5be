# SPDX-License-Identifier: MIT
"""The four-verb queue for a runtime of one's own: fetch, complete, retry, fail.

Read in this order: `fetched` (one job in somebody's hands), `reasons` (what its runtime says went
wrong), `claimer` (fetches that wait, and the claims made for them), `crew` (lease, settlements and
upkeep beside them), `consumer` (the verbs).
"""

from __future__ import annotations

from packhorse.consumer.consumer import Consumer
from packhorse.consumer.fetched import FetchedJob
from packhorse.consumer.settings import consumer_settings

__all__ = ["Consumer", "FetchedJob", "consumer_settings"]
