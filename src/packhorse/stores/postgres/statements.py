# SPDX-License-Identifier: MIT
"""What only a PostgreSQL plan may ask for, and its queries.

A round trip costs more than most statements, so whatever needs no answer (`Send`, `Lock`) is kept
until something does, and travels with it, or with the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, TypeVar

from packhorse.stores.sql.statements import Parameters, Queries

T = TypeVar("T")


class Once(NamedTuple):
    """The only statement of its plan: answered with all rows, committed in the same round trip.

    What the plan wants woken by that commit it says before.
    """

    text: str
    parameters: Parameters = ()


class Short(Generic[T]):
    """A verb that is one statement, mostly; it may share its commit with others.

    It is tried once. If it does not come to an answer, nothing was written, and the plan's other
    steps follow.
    """

    __slots__ = ("answer", "counts", "parameters", "text", "topics", "tried")

    def __init__(
        self,
        text: str,
        parameters: Parameters,
        topics: Sequence[str],
        answer: Callable[[Any], T | None],
        *,
        counts: bool,
    ) -> None:
        self.text = text
        self.parameters = parameters
        self.topics = topics  #: to wake once it is committed
        self.answer = answer  #: the verb's, or None, from the rows
        self.counts = counts  #: from the number of rows changed instead
        self.tried = False


class Lock:
    """Waits for the right to go on alone about these keys, until the plan ends.

    Answered with None at once, sent with what comes next. Taken in one order by everybody, so that
    plans that want the same keys cannot wait for each other.
    """

    __slots__ = ("keys", "shared")

    def __init__(self, *keys: str, shared: bool = False) -> None:
        self.keys = keys
        self.shared = shared


class Commit:
    """Commits what the plan has written; it goes on in another transaction, and is not repeated."""

    __slots__ = ()


class Again(Exception):
    """Raised by a plan that has lost a race: it is undone, and run again from its beginning."""


_FRAGMENTS: Final = MappingProxyType(
    {
        "true": "true",
        "false": "false",
        "greatest": "greatest",
        "least": "least",
        "is": "is not distinct from",
        "text": "{0}::text",
        "number": "{0}::bigint",
        "in_texts": "= any({0}::text[])",
        "in_numbers": "= any({0}::bigint[])",
        "in_column": "= any({0})",
        "texts": "unnest({0}::text[]) with ordinality as {2} (value, key)",
        "elements": "unnest({0}) as {2} (value)",
        "field": "({0}::json ->> '{1}')",
        "options": "{0}.options",
        "marked": (
            "coalesce(nullif(left({0}, -1), '{{') || ',', '{{') || '\"attached\":' || 'true}}'"
        ),
        "fence_bytes": "convert_to({0}.fence::text, 'UTF8')",
        "member": "({0}.options::json -> 'member' ->> 0)",
        "bytes": "{0}::bytea",
        "upstream_request_id": "{0}.upstream_request_id",
        "tags_of": "json_array_elements_text({0}.extra::json -> 'tags') as tag (value)",
        "lined": "coalesce({0}.lined, false)",
        "last_number": "0",
        "created_by": "{0}.created_by",
        "has_ends": "(starts_with({0}, {1}::text) or right({0}, length({1}::text)) = {1}::text)",
        "payload": "payload",
        # The planner takes no index for these, and looks into no subquery with an offset.
        "payload_bytes": "octet_length(payload)",
        "unindexed": "coalesce({0}, -1)",
        "unsorted": "{0} + 0",
        "apart": "offset 0",
        "blocked_by_line": ", blocked_by = order_line",
        "queues_of_jobs": "select queue from {{jobs}}",
        "lock": "for update of {0}",
        "skip_locked": "for update skip locked",
    }
)

#: Marks of tables stay in the texts: `Texts` knows the schema and the prefix of a store.
queries: Final = Queries(
    "packhorse.stores.postgres", _FRAGMENTS, table="{{{}}}", named="%({})s", unnamed="%s"
)
sql: Final = queries.text
