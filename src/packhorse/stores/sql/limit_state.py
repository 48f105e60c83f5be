# SPDX-License-Identifier: MIT
"""What limits depend on: settings of tasks, the logs of rate limits, and bytes.

Upkeep removes a log once nothing in it counts any more. No index finds such logs, since every claim
that writes one would pay for it. So each run of upkeep reads one page of logs, in the order of
their gates, and the next run goes on after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from packhorse.core.policies.gates import Gate, GateKind, GateState
from packhorse.core.policies.rate_limit import RateLog, current, is_over
from packhorse.core.policies.retention import DAY_US
from packhorse.core.sizes import THE_STORE
from packhorse.stores.plan import Steps
from packhorse.stores.requests import EVERY_TASK, TaskSettings
from packhorse.stores.sql.dialect import Dialect
from packhorse.stores.sql.lines import gate_text
from packhorse.stores.sql.rows import DECODED_MAX, queue_settings
from packhorse.stores.sql.statements import NOW, Rows, Send, SendMany


def task_settings(dialect: Dialect, tasks: Iterable[str]) -> Steps[dict[str, TaskSettings]]:
    """Return the limits of those of these tasks that have any."""
    names = list(tasks)
    asked = (EVERY_TASK in names, dialect.many(names))
    rows = yield Rows(dialect.sql("task_settings"), asked)
    return {name: read_task_settings(text) for name, text in rows}


@lru_cache(maxsize=DECODED_MAX)
def read_task_settings(text: str) -> TaskSettings:
    """Return the limits of a task from their column."""
    return msgspec.json.decode(text, type=TaskSettings)


#: Logs that one run of upkeep reads.
_PAGE: Final = 1000
#: The gate of the row that keeps where the next page begins; no row: at the first log. The store
#: keeps it, so that short-lived processes get through all logs. Names of gates begin with their
#: kind, so none is empty.
_MARK: Final = ""


class _Page(NamedTuple):
    """A page of logs, in the order of their gates."""

    behind: str  #: the gate before them; empty: they are the first
    over: list[tuple[str, str]]  #: gates and logs in which nothing counts, as they were read
    next_behind: str  #: where the next page begins; empty: these were the last

    @property
    def is_all(self) -> bool:
        """Whether every page is this one."""
        return self.behind == self.next_behind


@dataclass(slots=True)
class Grants:
    """What a claim has granted of a rate, added to its log only when that is asked for."""

    room: int  #: the weight that the rate still admits; 0 once it has refused a job
    owed: int = 0  #: the weight that is not in the log yet
    passed: int = 0  #: jobs admitted since blocked ones were last unblocked for them
    changed: bool = False  #: the log is to be written


def state_of(dialect: Dialect, gate: Gate) -> Rows:
    """Return the step that reads the state of a rate, or of the concurrency of a queue."""
    if gate.kind is GateKind.QUEUE_CONCURRENCY:
        return Rows(dialect.sql("running_in_queue"), gate.name)
    return Rows(dialect.sql("rate_log"), (gate_text(gate),))


def heaviest(state: GateState, now_us: int) -> int | None:
    """Return the greatest weight that a rate admits now; None: it is no rate."""
    rule = state.rule
    if rule is None:
        return None
    return rule.max - sum(weight for _, weight in current(state.log, rule, now_us))


def decode_log(rows: Sequence[tuple[str]]) -> RateLog:
    """Return the log of grants of a rate gate from the answer of `rate_log`."""
    return _decoded(rows[0][0]) if rows else ()


def any_log_to_do(dialect: Dialect) -> Steps[bool]:
    """Whether `forget_logs` would write anything."""
    page: _Page = yield from _page(dialect)
    return bool(page.over) or not page.is_all


def forget_logs(dialect: Dialect) -> Steps[None]:
    """Remove the logs of a page that are over, and keep where the next page begins.

    The plan must have the whole store, so that no claim grants at the same time. Still a log is
    removed only if it is as it was read: a lost grant would break a limit.
    """
    page: _Page = yield from _page(dialect)
    gone = [{"gate": gate, "log": log} for gate, log in page.over]
    if page.next_behind:
        yield Send(dialect.sql("rate_keep"), (_MARK, page.next_behind))
    elif page.behind:
        gone.append({"gate": _MARK, "log": page.behind})
    if gone:
        yield SendMany(dialect.sql("rate_forget"), gone)


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
    """Return a time after which no grant counts, whatever its gate.

    It is the longest window of all rules, since the gate's own may change, and at least a day,
    since a rule may be missing for a while during a deploy.
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
    """Return the payload bytes of the unfinished jobs of a queue, or of the store."""
    [(held,)] = yield Rows(*scoped(dialect, "bytes", queue))
    return int(held)


def scoped(dialect: Dialect, query: str, queue: str) -> tuple[str, tuple[str, ...]]:
    """Return a query about a queue or the store, and its parameters."""
    if queue == THE_STORE:
        return dialect.sql(query, bounded="true"), ()
    return dialect.sql(query, bounded="queue = ?"), (queue,)


def count_bytes(dialect: Dialect, job_ids: Sequence[str]) -> Steps[None]:
    """Count these jobs in bytes from now on."""
    if job_ids:
        yield Send(dialect.sql("bytes_keep"), (dialect.many(job_ids),))
