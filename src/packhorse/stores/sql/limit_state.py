# SPDX-License-Identifier: MIT
"""What limits depend on: settings of tasks, what rate limits have granted, and bytes.

A log of grants goes when nothing in it counts any more. No index tells which are over, since claims
write them and would have to pay for it. So each run of upkeep looks at a page of them, in the order
of their limits, and the next goes on behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from packhorse.core.policies.gates import Gate
from packhorse.core.policies.rate_limit import RateLog, is_over
from packhorse.core.policies.retention import DAY_US
from packhorse.core.sizes import THE_STORE
from packhorse.stores.plan import Steps
from packhorse.stores.requests import EVERY_TASK, TaskSettings
from packhorse.stores.sql.dialect import Dialect
from packhorse.stores.sql.ordering import gate_text
from packhorse.stores.sql.rows import DECODED_MAX, queue_settings
from packhorse.stores.sql.statements import NOW, Rows


def task_settings(dialect: Dialect, tasks: Iterable[str]) -> Steps[dict[str, TaskSettings]]:
    """The limits of those of these tasks that have some."""
    names = list(tasks)
    asked = (EVERY_TASK in names, dialect.many(names))
    rows = yield Rows(dialect.sql("task_settings"), asked)
    return {name: read_task_settings(text) for name, text in rows}


@lru_cache(maxsize=DECODED_MAX)
def read_task_settings(text: str) -> TaskSettings:
    """The limits of a task from their column."""
    return msgspec.json.decode(text, type=TaskSettings)


#: Logs that one run of upkeep looks at.
_PAGE: Final = 1000
#: The row among the logs that says behind which gate the next page begins; there is none when that
#: is the first. It is in the store and not in a process, so that all logs get their turn however
#: short processes live. No gate has this name: theirs begin with their kind.
_MARK: Final = ""


class _Page(NamedTuple):
    """Some logs in the order of their gates."""

    behind: str  #: the gate before them; empty: they are the first
    over: list[tuple[str, str]]  #: gates and logs in which nothing counts, as they were read
    next_behind: str  #: where the next page begins; empty: these were the last

    @property
    def is_all(self) -> bool:
        """Whether every page is this one."""
        return self.behind == self.next_behind


def read_log(dialect: Dialect, gate: Gate) -> Steps[RateLog]:
    """What was granted at a rate gate."""
    rows = yield Rows(dialect.sql("rate_log"), (gate_text(gate),))
    return _decoded(rows[0][0]) if rows else ()


def any_log_to_do(dialect: Dialect) -> Steps[bool]:
    """Whether `forget_logs` would write anything."""
    page: _Page = yield from _page(dialect)
    return bool(page.over) or not page.is_all


def forget_logs(dialect: Dialect) -> Steps[None]:
    """Forget those logs of a page that are over, and write down where the next begins.

    For a plan that has everything for itself, so no claim grants meanwhile. Still a log goes only
    as it was read: a grant that was lost would break a limit.
    """
    page: _Page = yield from _page(dialect)
    gone = [{"gate": gate, "log": log} for gate, log in page.over]
    if page.next_behind:
        yield dialect.write(dialect.sql("rate_keep"), (_MARK, page.next_behind))
    elif page.behind:
        gone.append({"gate": _MARK, "log": page.behind})
    if gone:
        yield dialect.write_rows(dialect.sql("rate_forget"), gone)


def _page(dialect: Dialect) -> Steps[_Page]:
    marks = yield Rows(dialect.sql("rate_log"), (_MARK,))
    behind = marks[0][0] if marks else ""
    rows = yield Rows(dialect.sql("rate_page"), {"behind": behind, "limit": _PAGE})
    if not rows:
        return _Page(behind, [], "")
    window_us = yield from _longest_window_us(dialect)
    now_us = yield NOW
    over = [(gate, log) for gate, log in rows if is_over(_decoded(log), window_us, now_us)]
    return _Page(behind, over, rows[-1][0] if len(rows) == _PAGE else "")


def _longest_window_us(dialect: Dialect) -> Steps[int]:
    """No grant counts longer than this, whatever its gate.

    The longest there is and not the gate's own, since that one may change; and a day at
    least, since it may be missing only for now, while one release gives way to another.
    """
    queues = yield Rows(dialect.sql("queue_settings"))
    tasks = yield Rows(dialect.sql("tasks"))
    limits = [queue_settings("", text) for (text,) in queues]
    rules = [rule for queue in limits for rule in (queue.rate, queue.tenant_rate)]
    rules += [read_task_settings(text).rate for (text,) in tasks]
    return max([DAY_US, *(rule.window_us for rule in rules if rule is not None)])


def _decoded(text: str) -> RateLog:
    return msgspec.json.decode(text, type=tuple[tuple[int, int], ...])


def bytes_of(dialect: Dialect, queue: str) -> Steps[int]:
    """How many bytes the payloads of a queue's unfinished jobs have, or of the store's."""
    [(held,)] = yield Rows(*scoped(dialect, "bytes", queue))
    return int(held)


def scoped(dialect: Dialect, query: str, queue: str) -> tuple[str, tuple[str, ...]]:
    """A query about a queue or the store, and its parameters."""
    if queue == THE_STORE:
        return dialect.sql(query, bounded="true"), ()
    return dialect.sql(query, bounded="queue = ?"), (queue,)


def count_bytes(dialect: Dialect, job_ids: Sequence[str]) -> Steps[None]:
    """Jobs are counted in bytes from now on."""
    if job_ids:
        yield dialect.write(dialect.sql("bytes_keep"), (dialect.many(job_ids),))
