# SPDX-License-Identifier: MIT
"""Every verb finds its jobs by an index, whatever the number of jobs."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.generators import drive
from packhorse.core.job import Job
from packhorse.core.settlement import SettlementKind
from packhorse.stores.plan import Plan, Wake
from packhorse.stores.requests import JobFilter, QueueSettings
from packhorse.stores.sql.statements import Now, Rows, SendMany, Together
from packhorse.stores.sqlite.connection import connect
from packhorse.stores.sqlite.statements import queries, sql
from packhorse.stores.sqlite.store import SqliteStore
from packhorse.testing.conformance.samples import ANNA, QUEUE, TASK, new_job, settlement_of
from packhorse.testing.virtual_clock import VirtualClock
from tests.unit.sqlite_support import claiming, renewing, sqlite_store

ROWS: Final = 10_000

#: Every statement, and how SQLite is meant to find the jobs of some.
QUERIES: Final = tuple(sorted(queries.templates))
INTENDED: Final = (
    ("claim_survey", "jobs", "COVERING INDEX packhorse_lanes (lane=? AND queue=?)"),
    ("claim_numbers", "jobs", "INDEX packhorse_ready (queue=? AND task=? AND (rank,place)>(?,?))"),
    ("claim", "jobs", "INTEGER PRIMARY KEY (rowid=?)"),
    ("promote_due", "jobs", "INDEX packhorse_lanes (lane=? AND queue=? AND rank<?)"),
    ("settle_completed", "jobs", "INDEX sqlite_autoindex_packhorse_jobs_1 (id=?)"),
    ("settle_rows", "jobs", "INDEX sqlite_autoindex_packhorse_jobs_1 (id=?)"),
    ("settle_one", "jobs", "INTEGER PRIMARY KEY (rowid=?)"),
    ("depth", "jobs", "COVERING INDEX packhorse_lanes (lane=? AND queue=?)"),
    ("bytes", "jobs", "COVERING INDEX packhorse_bytes (queue=? AND bytes>?)"),
    ("bytes_begin", "jobs", "INDEX packhorse_lanes (lane=? AND queue=?)"),
    ("counts_stands", "jobs", "COVERING INDEX packhorse_lanes (lane=? AND queue>?)"),
    ("counts_stand", "jobs", "COVERING INDEX packhorse_lanes (lane=? AND queue=?)"),
    ("counts_newest", "jobs", "INDEX packhorse_finished (expires_us>?)"),
    ("counts_lasting", "jobs", "INDEX packhorse_finished (expires_us=?)"),
    ("expired_records", "jobs", "INDEX packhorse_finished (expires_us>? AND expires_us<?)"),
    ("deadlines_passed", "deadlines", "PRIMARY KEY (deadline_us<?)"),
    ("deadlines_passed", "jobs", "INTEGER PRIMARY KEY (rowid=?)"),
)
#: What reads all finished jobs by nature, through their index; and pages of all jobs, newest first.
MAY_SCAN: Final = ("queues", "search")
#: What pages through all jobs by nature, in order.
PAGES: Final = ("carry_out", "chosen_finished")
#: The parts of statements that are put together when they are run.
PARTS: Final = MappingProxyType(
    {
        "scope": "",
        "bounded": "queue = ?",
        "columns": "*",
        "column": "seq",
        "conditions": "job.queue = 'mail'",
        "condition": "queue",
        "chosen": "seq {in_numbers ?}",
        "flag": "paused",
        "handed_columns": "*",
        "kept": "(?, ?, ?, ?)",
        "done": "json_each(:results)",
        "next": "select * from packhorse_jobs where lane = 0 and queue = :queue",
        "rows": f"({', '.join('?' * 19)})",
        "table": "jobs",
        "names": "seq, id",
        "given": ":seq, :id",
        "beyond": "<",
        "within": ">=",
        "order": "desc",
        "task": ":task",
    }
)


class Explained:
    """Ten thousand jobs of all kinds, and how SQLite would go about each statement of a plan."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.store = sqlite_store(folder, "?synchronous=OFF", self.clock)
        self.held = self._fill()
        self.clock.advance(2)
        self._connection = connect(self.store._settings)

    def close(self) -> None:
        self._connection.close()
        self.store.close()

    def _fill(self) -> list[Job]:
        """A third each due, scheduled and with a deadline; then some finished, failed and held."""
        store, now_us = self.store, self.clock.now_us()
        bounded = QueueSettings("bounded", max_bytes=1)
        store.run(store.queues.declare([QueueSettings(QUEUE), bounded]))
        store.run(store.leases.renew(renewing()))
        kinds: list[dict[str, Any]] = [
            *({}, {"delay_us": SECOND_US}, {"deadline_us": now_us + SECOND_US})
        ]
        for start in range(0, ROWS, 1000):
            numbers = range(start, start + 1000)
            store.run(store.jobs.submit([new_job(**kinds[number % 3]) for number in numbers]))
        held = list(store.run(store.jobs.claim(claiming(limit=300))).jobs)
        done, failed, held = held[:100], held[100:200], held[200:]
        for jobs, kind in ((done, SettlementKind.COMPLETED), (failed, SettlementKind.DEAD)):
            store.run(store.jobs.settle([settlement_of(kind, job) for job in jobs]))
        return held

    def explain(self, plan: Plan[Any]) -> dict[str, tuple[str, list[str]]]:
        """The text of each statement by its name, and what SQLite would do; nothing is kept."""
        found: dict[str, tuple[str, list[str]]] = {}
        self._connection.execute("begin")
        for steps in (plan.look, plan.steps):
            if steps is not None:
                drive(steps(), lambda step: self._answer(step, found))
        self._connection.execute("rollback")
        return found

    def details(self, text: str) -> list[str]:
        """How SQLite would go about a statement, whatever its parameters."""
        text = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
        names = set(re.findall(r"(?<!:):(\w+)", text))
        count = max([0, *map(int, re.findall(r"\?(\d+)", text))]) or text.count("?")
        given: Any = dict.fromkeys(names) if names else [None] * count
        return [row[3] for row in self._connection.execute(f"explain query plan {text}", given)]

    def _answer(self, step: Any, found: dict[str, tuple[str, list[str]]]) -> Any:
        if isinstance(step, Now):
            return self.clock.now_us()
        if isinstance(step, Wake):
            return None
        if isinstance(step, Together):
            return [self._answer(one, found) for one in step.asked]
        many = isinstance(step, SendMany)
        for parameters in step.parameters[:1] if many else [step.parameters]:
            rows = self._connection.execute(f"explain query plan {step.text}", parameters)
            found[name_of(step.text)] = (step.text, [row[3] for row in rows])
        if many:
            return self._connection.executemany(step.text, step.parameters).rowcount
        cursor = self._connection.execute(step.text, step.parameters)
        return cursor.fetchall() if isinstance(step, Rows) else cursor.rowcount


def name_of(text: str) -> str:
    """The name of a query, which its first line tells."""
    return text.splitlines()[0].removeprefix("-- ")


def ways_to(table: str, text: str, details: list[str]) -> list[str]:
    """How SQLite would read a table, under whichever names the statement gives it."""
    names = {f"packhorse_{table}", *re.findall(rf"packhorse_{table}\s+as\s+(\w+)", text)}
    words = [re.match(r"(SCAN|SEARCH) (\w+)(?: (.*))?$", detail) for detail in details]
    return [f"{word[1]} {word[3] or ''}".strip() for word in words if word and word[2] in names]


def scans_of_jobs(text: str, details: list[str]) -> list[str]:
    """Where SQLite would walk through all jobs."""
    return [way for way in ways_to("jobs", text, details) if way.startswith("SCAN")]


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Explained]:
    explained = Explained(tmp_path_factory.mktemp("plans"))
    yield explained
    explained.close()


def plans_of(store: SqliteStore, held: list[Job]) -> dict[str, Plan[Any]]:
    """Every verb that workers, handles and upkeep use all the time."""
    some, other = held[:20], held[20:40]
    settlements = [settlement_of(SettlementKind.COMPLETED, job) for job in some]
    failures = [settlement_of(SettlementKind.FAILED, job) for job in other]
    return {
        "submit": store.jobs.submit([new_job(), new_job(deadline_us=1, tags=("a",))]),
        "claim": store.jobs.claim(claiming()),
        "settle": store.jobs.settle(settlements),
        "settle failures": store.jobs.settle(failures),
        "cancel": store.jobs.cancel(some[0].id),
        "redrive": store.jobs.redrive([some[0].id]),
        "await finish": store.jobs.await_finish(some[0].id),
        "renew": store.leases.renew(renewing()),
        "leave": store.leases.leave(ANNA),
        "cancelled": store.leases.cancelled(ANNA),
        "expired leases": store.leases.expired(),
        "orphans": store.leases.orphans([ANNA], limit=10),
        "depth": store.queues.depth(QUEUE),
        "queues": store.queues.queues(),
        "declare": store.queues.declare([QueueSettings("other", max_bytes=1)]),
        "promote": store.upkeep.promote(limit=10),
        "expire": store.upkeep.expire(limit=10),
        "park": store.upkeep.park(after_us=1, limit=10),
        "prune": store.upkeep.prune(limit=10),
        "job": store.inspection.job(some[0].id),
        "history": store.inspection.history(some[0].id),
        "counts": store.inspection.counts(),
        "counts_some": store.inspection.counts(most=100),
        "outlook": store.inspection.outlook(ANNA, [QUEUE], [TASK]),
        "search": store.inspection.search(JobFilter(), limit=10),
    }


def test_no_verb_walks_through_all_jobs(explained: Explained) -> None:
    for verb, plan in plans_of(explained.store, explained.held).items():
        for name, (text, details) in explained.explain(plan).items():
            scans = scans_of_jobs(text, details)
            assert not scans or name in MAY_SCAN, f"{verb} runs {name}: {scans}"


@pytest.mark.parametrize(
    ("verb", "name"), [("counts", "counts_kept"), ("counts", "counts_page"), ("queues", "queues")]
)
def test_what_counts_all_jobs_reads_indexes_only(
    explained: Explained, verb: str, name: str
) -> None:
    plan = plans_of(explained.store, explained.held)[verb]
    text, details = explained.explain(plan)[name]

    assert all(
        "USING INDEX packhorse_finished" in scan or "USING COVERING INDEX" in scan
        for scan in scans_of_jobs(text, details)
    )


@pytest.mark.parametrize(("name", "table", "index"), INTENDED)
def test_the_hot_statements_use_the_index_meant_for_them(
    name: str, table: str, index: str, explained: Explained
) -> None:
    verbs = plans_of(explained.store, explained.held).values()
    explanations = [explained.explain(plan) for plan in verbs]

    (text, details), *_ = [found[name] for found in explanations if name in found]

    assert f"SEARCH USING {index}" in ways_to(table, text, details)


@pytest.mark.parametrize("name", QUERIES)
def test_no_statement_walks_through_all_jobs(name: str, explained: Explained) -> None:
    text = sql(name, **PARTS)

    details = explained.details(text)

    assert not scans_of_jobs(text, details) or name in MAY_SCAN + PAGES


@pytest.mark.parametrize("name", ["search_dead", "search_tagged"])
def test_a_search_for_the_oldest_jobs_walks_through_none(name: str, explained: Explained) -> None:
    text = sql(name, beyond=">", within="<=", order="asc")

    assert not [one for one in explained.details(text) if "SCAN" in one or "B-TREE" in one]


def test_a_scan_of_all_jobs_would_be_noticed(tmp_path: Path) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("create table packhorse_jobs (seq integer primary key, tenant text)")
        for text in (
            "select tenant from packhorse_jobs where tenant = ''",
            "select job.tenant from packhorse_jobs as job where job.tenant = ''",
        ):
            details = [row[3] for row in connection.execute(f"explain query plan {text}")]
            assert scans_of_jobs(text, details)
        keyed = "select tenant from packhorse_jobs where seq = 1"
        details = [row[3] for row in connection.execute(f"explain query plan {keyed}")]
        assert not scans_of_jobs(keyed, details)
