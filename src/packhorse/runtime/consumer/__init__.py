# SPDX-License-Identifier: MIT
"""The four-verb queue for a runtime of one's own: fetch, complete, retry, fail.

`consumer` has the verbs, `fetched` the job in their hands, `runtime` hands claimed jobs out to
fetches; lease, claims and settlements are those of `packhorse.runtime.worker.base_runtime`.
"""

from __future__ import annotations

from packhorse.runtime.consumer.consumer import Consumer, consumer_settings
from packhorse.runtime.consumer.fetched import FetchedJob

__all__ = ["Consumer", "FetchedJob", "consumer_settings"]
