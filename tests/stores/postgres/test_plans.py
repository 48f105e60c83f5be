# SPDX-License-Identifier: MIT
"""No plan depends on statistics: every statement finds its rows by an index, on tables that were
never analyzed, that were analyzed while they were empty, that have been filled since, and that were
analyzed when all jobs had ended under an old snapshot.

Plans are kept for as long as a connection lives, so those made for an empty table must be good for
a full one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
from psycopg import Connection, sql

from packhorse.core.settlement import SettlementKind, Verdict
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.postgres import connection as connecting
from packhorse.stores.postgres.connection import StartupOptions, connection_arguments
from packhorse.stores.postgres.fast_paths import HANDED_COLUMNS, SURVEYED
from packhorse.stores.postgres.rendering import Texts
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.stores.postgres.statements import queries
from packhorse.stores.postgres.store import PostgresStore
from packhorse.stores.sql.claim import merged
from packhorse.stores.sql.dialect import CANDIDATE_COLUMNS
from packhorse.stores.sql.rows import RECORD_COLUMNS
from packhorse.stores.sql.search import CONDITIONS
from packhorse.stores.sql.statements import Rows
from packhorse.testing.conformance.samples import new_job, settlement_of
from packhorse.testing.places import drop_schema
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.support import ask, claiming, postgres_store, renewing, submitting, until

#: In one process, since it takes long to fill the tables.
pytestmark = pytest.mark.xdist_group("plans")

SCHEMA: Final = "plans"
JOBS: Final = 5000
BATCH: Final = 100
FEW: Final = 10
#: Pieces that are no statements by themselves.
PIECES: Final = {
    *("claim_lock", "claim_next", "claim_next_locked", "claim_next_of_tasks"),
    *("claim_range", "claim_range_of_task"),
}
QUERIES: Final = tuple(sorted(queries.templates.keys() - PIECES))
#: Tables that grow with the number of jobs or keys.
GROWING: Final = frozenset(
    {
        *("jobs", "attempts", "tags", "deadlines", "keys", "passes", "stash"),
        *("records", "attachments"),
    }
)
#: What must be known to find few rows by an index: one of these, as a pattern of its condition.
NARROW: Final = {
    "jobs_pkey": r"\bid = ",
    "seqs": r"\bseq = ",
    "ready": r"\bqueue = ",
    "bytes": r"\bqueue = ",
    "lanes": r"\bqueue [=>] |\(?lane = [24]\)?",  # those that run or are parked are few
    "finished": r"expires_us <= ",
    "holds": r"hold_us > .*hold_us <= ",
    "cancelling": r"worker = ",
    "lines": r"\bline = ",
    "order": r"order_line = ",
    "blocked": r"blocked_by [=>]",
    "heavy": r"blocked_by = ",
    "attempts_pkey": r"\bseq = ",
    "attachments_pkey": r"\bseq = ",
    "records_pkey": r"name [=>]",
    "records_in_order": r"kind = ",
    "records_expiring": r"expires_us <= ",
    "deadlines_pkey": r"deadline_us <= ",
    "tags_pkey": r"\btag = |tag >= .*ROW\(tag, seq\) < |tag <= .*ROW\(tag, seq\) > ",
    "tags_of": r"\bseq = ",
    "keys_pkey": r"kind = .*tenant = .*task = .*key = ",
    "keys_of": r"\bseq = ",
    "passes_pkey": r"queue = .*priority = ",
    "stash_pkey": r"\bseq = ",
}
#: Statements that read more by nature, and why that may be.
WIDE: Final = {
    "aftermath_needed": "stops at the first row of a lane or a table",
    "blocked_any": "stops at the first row of a lane",
    "gates_held": "goes from gate to gate, each by the index",
    "queues_waiting": "goes from queue to queue, each by the index",
    "blocked_of": "an operator lets all of them go",
    "lines_begin": "all unfinished jobs, when a task is declared with limits",
    "queues_of_task": "all ready jobs, when the limits of a task change",
    "counts": "counts all jobs, for people",
    "counts_some": "goes from lane to lane by the index, and reads a bounded number of each",
    "counts_newest": "reads a bounded number from the end of the index",
    "counts_lasting": "reads a bounded number from the beginning of the index",
    "oldest_ready": "reads all ready jobs, for people",
    "queues": "names the queues of all jobs, for people",
    "dead_queues": "goes from queue to queue, each by the index",
    "search_bound": "reads a bounded number from one end of the index",
    "search_standing": "reads a bounded number of a lane",
    "search": "pages through all jobs, newest first, for people",
    "chosen_finished": "pages through a bounded number of jobs, oldest first",
    "carry_out": "pages through all jobs, to copy them",
}
#: The parts of statements that are put together when they are run.
PARTS: Final = {
    "columns": RECORD_COLUMNS,
    "column": "seq",
    "table": "jobs",
    "type": "bigint",
    "conditions": CONDITIONS["queue"],
    "condition": CONDITIONS["after"],
    "chosen": "seq {in_numbers ?}",
    "conflict": "on conflict (id) do nothing",
    "flag": "paused",
    "handed_columns": HANDED_COLUMNS,
    "survey_columns": SURVEYED,
    "scope": "",
    "bounded": "queue = 'mail'",
    "looked": "job.id = any(:seen::text[])",
    "task": "'task'",
    "answer": "id, seq, number",
    "names": "seq, id",
    "given": ":seq, :id",
    "beyond": "<",
    "within": ">=",
    "order": "desc",
}
#: Ready jobs of three tasks, merged.
OF_TASKS: Final = merged(queries, "claim_ready_of_task", 3, CANDIDATE_COLUMNS)
LOCK: Final = queries.filled("claim_lock")
NEXT: Final = queries.filled("claim_next", columns="ctid as row", scope="")
ASKED: Final = queries.filled("claim_next", columns=CANDIDATE_COLUMNS, scope="")
OWN_PARTS: Final = {
    "blocked_of": {"condition": "queue"},
    "claim_batch": {"next": queries.filled("claim_next_locked", next=NEXT)},
    "claim_candidates": {"next": ASKED},
    "claim_candidates_of_tasks": {"next": OF_TASKS},
    "claim_fast": {"next": queries.filled("claim_range"), "lock": LOCK},
    "claim_ready_of_task": {"columns": CANDIDATE_COLUMNS},
}
#: Statements that merge the ready jobs of some tasks, and what they are made of.
MERGING: Final = ("claim_batch", "claim_candidates_of_tasks", "claim_fast")


def of_tasks(count: int) -> dict[str, dict[str, str]]:
    """The parts of statements about the jobs of so many tasks."""
    ready = merged(queries, "claim_ready_of_task", count, "ctid as row, rank, place")
    return {
        "claim_batch": {"next": queries.filled("claim_next_of_tasks", next=ready, lock=LOCK)},
        "claim_candidates_of_tasks": {
            "next": merged(queries, "claim_ready_of_task", count, CANDIDATE_COLUMNS)
        },
        "claim_fast": {"next": merged(queries, "claim_range_of_task", count), "lock": LOCK},
    }


#: What drivers say of parameters whose type the text leaves open.
TYPES: Final = {"reschedule": {"lane": "bigint"}}


class Planner:
    """Plans statements as the store's own connections do, for any parameters."""

    def __init__(self, url: str) -> None:
        settings = PostgresSettings.from_url(url)
        self._texts = Texts(settings.schema, settings.prefix)
        self.connection: Connection[Any] = StartupOptions().connect(settings)
        self.filled = False
        self.connection.execute("set plan_cache_mode = force_generic_plan")

    def scans(self, name: str, text: str) -> list[str]:
        """How a statement would read tables that grow, as far as that is not narrow."""
        return [found for found in map(too_wide, self.steps(name, text)) if found]

    def steps(self, name: str, text: str) -> list[dict[str, Any]]:
        """How a statement would be run, step by step."""
        statement = self._texts.statement(text)
        names = statement.names or ()
        types = [TYPES.get(name, {}).get(one, "unknown") for one in names]
        declared = f"({', '.join(types)})" if set(types) - {"unknown"} else ""
        count = len(set(re.findall(rb"\$(\d+)", statement.query)))
        given = f"({', '.join(['null'] * count)})" if count else ""
        connection = self.connection
        connection.execute("deallocate all")
        connection.execute(f"prepare asked {declared} as ".encode() + statement.query)
        rows = connection.execute(sql.SQL("explain (format json) execute asked" + given)).fetchall()
        return list(_nodes(rows[0][0][0]["Plan"]))


def too_wide(node: dict[str, Any]) -> str | None:
    """What a step of a plan reads, if that grows with the number of jobs."""
    index, table = node.get("Index Name"), node.get("Relation Name")
    if index is not None:
        condition = node.get("Index Cond", "")
        narrow = NARROW.get(index)
        if narrow is None or re.search(narrow, condition):
            return None
        return f"{index} {condition or 'from end to end'}"
    if node["Node Type"] == "Seq Scan" and table in GROWING:
        return f"{table} as a whole"
    return None


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


STATES: Final = ("never analyzed", "analyzed while empty", "filled since", "worked off")


@pytest.fixture(scope="module", params=STATES)
def planner(request: pytest.FixtureRequest) -> Iterator[Planner]:
    """On a server as it comes, and a schema that is new."""
    server = PostgresServer()
    url = f"{server.url()}?schema={SCHEMA}"
    store = PostgresStore(PostgresSettings.from_url(url))
    store.migrate()
    planner = Planner(url)
    old = server.connect()
    old.execute("begin isolation level repeatable read; select count(*) from pg_class")
    if request.param == "worked off":
        store.run(store.leases.renew(renewing()))
        for _ in range(JOBS // (5 * BATCH)):
            store.run(store.jobs.submit([new_job() for _ in range(5 * BATCH)]))
            _work(store, 5 * BATCH)
    if request.param != "never analyzed":
        planner.connection.execute("analyze")
    if request.param == "filled since":
        store.run(store.jobs.submit([new_job() for _ in range(JOBS)]))
        planner.filled = True
    yield planner
    old.close()
    planner.connection.close()
    store.close()
    drop_schema(server.url(), SCHEMA)
    server.remove()


@pytest.mark.parametrize("name", QUERIES)
def test_a_statement_finds_its_rows_by_an_index_whatever_is_known_of_the_tables(
    name: str, planner: Planner
) -> None:
    scans = planner.scans(name, queries.text(name, **{**PARTS, **OWN_PARTS.get(name, {})}))

    assert not scans or name in WIDE


@pytest.mark.parametrize("name", ["search_dead", "search_tagged"])
def test_a_search_for_the_oldest_jobs_finds_them_by_an_index(name: str, planner: Planner) -> None:
    text = queries.text(name, beyond=">", within="<=", order="asc")

    assert not planner.scans(name, text)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", MERGING)
def test_jobs_of_some_tasks_are_merged_and_never_sorted(
    name: str, count: int, planner: Planner
) -> None:
    if planner.filled:
        planner.connection.execute("analyze")  # by then all jobs are of one task

    steps = planner.steps(name, queries.text(name, **{**PARTS, **of_tasks(count)[name]}))

    read = [step["Index Name"] for step in steps if step.get("Index Name") in ("ready", "lanes")]
    surveyed = 2 * ["lanes"] if name == "claim_fast" else []  # for due jobs and for suspects
    assert sorted(read) == surveyed + count * ["ready"]
    merges = [step for step in steps if step["Node Type"] == "Merge Append"]
    assert len(merges) == (count > 1)
    sorts = [step for merge in merges for step in _nodes(merge) if "Sort" in step["Node Type"]]
    assert not sorts


@pytest.mark.parametrize("name", ["records_by_id", "records_by_order"])
def test_a_page_of_records_reads_no_further_than_it_shows(name: str, planner: Planner) -> None:
    steps = planner.steps(name, queries.text(name))

    assert {step["Node Type"] for step in steps} == {"Limit", "Index Scan"}


def test_what_may_read_more_is_still_there() -> None:
    assert WIDE.keys() <= set(QUERIES)


@pytest.mark.parametrize(
    "text",
    [
        "select id from {jobs} where tenant = %s",
        "select id from {jobs} where lane = 0 and task = %s",
        "select task from {jobs} order by seq",
    ],
)
def test_a_walk_through_all_jobs_would_be_noticed(text: str, planner: Planner) -> None:
    assert planner.scans("planted", text)


@pytest.fixture
def fresh_url(url: str) -> Iterator[str]:
    """Of a store whose tables no other test has used: sessions tell late what they have read."""
    settings = PostgresSettings.from_url(url)
    schema = f"{settings.schema}_fresh"
    fresh = url.replace(settings.schema, schema)
    store = postgres_store(fresh)
    store.migrate()
    store.close()
    yield fresh
    drop_schema(settings.conninfo, schema)


def test_what_a_worker_of_an_empty_store_prepared_is_good_for_a_full_one(fresh_url: str) -> None:
    url = fresh_url
    worker, others = postgres_store(url), postgres_store(url)
    table = f"{worker._settings.schema}.jobs"
    worker.run(worker.leases.renew(renewing()))
    for _ in range(FEW):  # more than it takes for the server to keep its plans
        worker.run(worker.jobs.submit([new_job()]))
        _work(worker, 1)
    others.run(others.jobs.submit([new_job() for _ in range(JOBS)]))

    _work(worker, BATCH)

    worker.close()  # a session tells what it has read when it ends, at the latest
    others.close()
    counts = (
        "select seq_tup_read, idx_tup_fetch from pg_stat_user_tables where relid = %s::regclass"
    )
    until(lambda: ask(url, counts, table)[0][1] >= BATCH)
    [(read, fetched)] = ask(url, counts, table)
    assert read == 0
    assert fetched <= 10 * (BATCH + FEW)


def _work(store: PostgresStore, count: int) -> None:
    """Claim so many jobs and complete them, a batch each."""
    jobs = store.run(store.jobs.claim(claiming(limit=count))).jobs
    assert len(jobs) == count
    done = [settlement_of(SettlementKind.COMPLETED, job) for job in jobs]
    verdicts = store.run(store.jobs.settle(done))
    assert set(verdicts) == {Verdict.APPLIED}


def test_settings_that_a_pooler_takes_and_forgets_are_set_in_each_transaction(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetful(settings: PostgresSettings, options: StartupOptions) -> dict[str, Any]:
        return {**connection_arguments(settings, options), "options": ""}

    monkeypatch.setattr(connecting, "connection_arguments", forgetful)
    store = postgres_store(url)

    store.run(submitting(store, "first"))

    [(planned,)] = store.run(Plan("ask", _asked_for_planning))
    store.close()
    assert planned == "off"


def _asked_for_planning() -> Steps[list[tuple[str]]]:
    rows: list[tuple[str]] = yield Rows("select current_setting('enable_seqscan')")
    return rows
