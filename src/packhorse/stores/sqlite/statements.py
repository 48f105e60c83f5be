# SPDX-License-Identifier: MIT
"""The queries of SQLite."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from packhorse.stores.sql.statements import Queries

_LISTED: Final = "in (select value from json_each({0}))"
_FRAGMENTS: Final = MappingProxyType(
    {
        "true": "1",
        "false": "0",
        "greatest": "max",
        "least": "min",
        "is": "is",
        "text": "{0}",
        "number": "{0}",
        "in_texts": _LISTED,
        "in_numbers": _LISTED,
        "in_column": _LISTED,
        "texts": "json_each({0}) as {2}",
        "elements": "json_each({0}) as {2}",
        "field": "json_extract({0}, '$.{1}')",
        "options": "json_extract({0}.extra, '$.options')",
        "fence_bytes": "cast(cast({0}.fence as text) as blob)",
        "member": "json_extract({0}.extra, '$.options.member[0]')",
        "bytes": "{0}",
        "upstream_request_id": "json_extract({0}.extra, '$.upstream_request_id')",
        "tags_of": "json_each({0}.extra, '$.tags') as tag",
        "lined": "0",
        "last_number": (
            "max(coalesce((select max(seq) from packhorse_jobs), 0), "
            "(select value from packhorse_sequence))"
        ),
        "created_by": "json_extract({0}.extra, '$.created_by')",
        "has_ends": "(substr({0}, 1, length({1})) = {1} or substr({0}, -length({1})) = {1})",
        # A large payload is in the table of bodies, and empty in the row.
        "payload": (
            "case payload when '' then (select body from packhorse_bodies where job_seq = seq) "
            "else payload end"
        ),
        "payload_bytes": (
            "length(cast(case payload when '' then (select body from packhorse_bodies "
            "where job_seq = seq) else payload end as blob))"
        ),
        "unindexed": "+{0}",
        "unsorted": "{0}",
        "apart": "",
        # No gate: their line names it, and each would cost one more index entry.
        "blocked_by_line": "",
        "queues_of_jobs": (
            "select queue from packhorse_jobs where lane is not null "
            "union select queue from packhorse_jobs indexed by packhorse_finished "
            "where finished_us is not null"
        ),
        "lock": "",
        "skip_locked": "",
    }
)

queries: Final = Queries(
    "packhorse.stores.sqlite", _FRAGMENTS, table="packhorse_{}", named=":{}", unnamed="?"
)
sql: Final = queries.text
