# SPDX-License-Identifier: MIT
"""Kill workers at random instants of batches and workflows, and count what became of the parts.

    python -m faults.structure                               100 kills on each store
    python -m faults.structure --store sqlite --kills 10 --seed 7

Three workers share batches with callbacks and random graphs; when no handler runs, more of them are
begun. A worker is a fork, killed with SIGKILL, and another one follows at once.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from faults import report
from faults.checking.evidence import Verdict
from faults.checking.structure import Counted, Graph, Happened, judge
from faults.kill_runs import kill_run
from faults.records import RECORDS_VARIABLE, Recorder, read_lines
from faults.stores.opening import opened
from faults.worlds import all_jobs
from packhorse import Context, JobStatus, Packhorse

STORES: Final = ("sqlite", "postgres", "redis")
_WORKERS: Final = 3
_LEASE: Final = "1s"
#: A worker is killed so long at most after the one before.
_BETWEEN_S: Final = 2.0
#: A handler takes so long at most.
_REST_S: Final = 0.2
#: After so long without a line of a handler there is nothing to kill: more is begun.
_IDLE_S: Final = 0.5
#: Batches and workflows that have not ended, at most: a kill of who folds holds them up.
_OPEN_MAX: Final = 6
_NODES: Final = 200
_ITEMS: Final = 300
_CHUNK: Final = 10
_PARENTS_MAX: Final = 3
_DRAIN_S: Final = 240.0
_record: Final = Recorder()


class Found(msgspec.Struct, frozen=True):
    """What a run came to."""

    store: str
    about: str
    kills: int
    seed: int
    seconds: float
    facts: dict[str, int]
    verdict: Verdict


class _Round(NamedTuple):
    """A batch and a workflow."""

    batch: str
    workflow: str
    parents: dict[str, list[str]]


def create_app(url: str) -> Packhorse:
    """An app with a task for nodes, one for items, and one for callbacks."""
    app = Packhorse(url)
    chance = random.Random()

    def rest() -> None:
        time.sleep(chance.random() * _REST_S)

    @app.task(max_crashes=1_000_000)
    def node(ctx: Context, name: str, parents: list[str]) -> str:
        del parents  # their results; that they are there is what counts
        _record.write("start", ctx, note=name)
        rest()
        _record.write("end", ctx, note=name)
        return name

    @app.task(max_crashes=1_000_000)
    def item(ctx: Context, batch: str, number: int) -> int:
        rest()
        _record.write("item", ctx, note=f"{batch} {number}")
        return number

    @app.task(max_crashes=1_000_000)
    def called(ctx: Context, batch: str, kind: str) -> str:
        _record.write("called", ctx, note=f"{batch} {kind}")
        return f"{batch} {kind}"

    return app


def _work(url: str) -> None:
    """What a fork does."""
    app = create_app(url)
    app.run(concurrency=4, lease=_LEASE, handle_signals=False)
    app.close()


def run(
    store: str, folder: Path, *, kills: int, seed: int, nodes: int = _NODES, items: int = _ITEMS
) -> Found:
    """Kill, let go on in peace, and judge."""
    began = time.monotonic()
    (folder / "records").mkdir(parents=True)
    os.environ[RECORDS_VARIABLE] = str(folder / "records")
    ground = opened(store, folder)
    try:
        rig = Rig(ground.url, folder / "records", random.Random(seed), nodes, items)
        rig.kill(kills)
        happened = rig.collected()
        about = ground.facts()["store"]
    finally:
        ground.close()
    lines = read_lines(folder / "records")
    count = {event: sum(line.event == event for line in lines) for event in ("start", "end")}
    facts = {
        "batches": len(happened.batches),
        "items": sum(batch.items for batch in happened.batches.values()),
        "handlers of items that ended": len(happened.items),
        "workflows": len(happened.graphs),
        "nodes": sum(len(graph.parents) for graph in happened.graphs.values()),
        "attempts of nodes": count["start"],
        "of which cut off": count["start"] - count["end"],
        "workers that ended by themselves": rig.ended,
    }
    seconds = round(time.monotonic() - began, 1)
    return Found(store, about, kills, seed, seconds, facts, judge(happened))


class Rig:
    """The workers, and what they are given to do."""

    def __init__(
        self, url: str, records: Path, chance: random.Random, nodes: int, items: int
    ) -> None:
        self._url = url
        self._records = records
        self._chance = chance
        self._nodes = nodes
        self._items = items
        self._rounds: list[_Round] = []
        self.ended = 0  #: workers that were found dead before they were killed

    @contextmanager
    def app(self) -> Iterator[Packhorse]:
        """An app that is closed again before the next fork."""
        app = create_app(self._url)
        try:
            yield app
        finally:
            app.close()

    def kill(self, kills: int) -> None:
        """Kill one of the workers again and again, and let what is there come to its end."""
        with self.app() as app:
            app.store.migrate()
            self._begin(app)
        workers = [self._started() for _ in range(_WORKERS)]
        try:
            for _ in range(kills):
                time.sleep(self._chance.random() * _BETWEEN_S)
                index = self._chance.randrange(_WORKERS)
                self._end(workers[index])
                with self.app() as app:
                    if self._is_idle() and self._open(app) < _OPEN_MAX:
                        self._begin(app)
                workers[index] = self._started()
            until = time.monotonic() + _DRAIN_S
            with self.app() as app:
                while time.monotonic() < until and not self.is_quiet(app):
                    time.sleep(0.5)
        finally:
            for worker in workers:
                self._end(worker)

    def _begin(self, app: Packhorse) -> None:
        """Start a batch and a workflow."""
        number, chance = len(self._rounds), self._chance
        batch, workflow = f"batch-{number}", f"graph-{number}"
        called: Any = app.tasks["called"]
        app.batch(
            app.tasks["item"],
            [{"batch": batch, "number": each} for each in range(self._items)],
            batch_size=_CHUNK,
            id=batch,
            on_complete=called.call(batch, "complete"),
            on_success=called.call(batch, "success"),
        )
        flow = app.workflow(workflow)
        nodes: list[Any] = []
        parents: dict[str, list[str]] = {}
        for each in range(self._nodes):
            chosen = chance.sample(range(each), min(each, chance.randint(0, _PARENTS_MAX)))
            task: Any = app.tasks["node"]
            call = task.call(f"{workflow}/n{each}", [nodes[one].result for one in chosen])
            nodes.append(flow.add(call, name=f"n{each}"))
            parents[f"n{each}"] = [f"n{one}" for one in chosen]
        flow.start()
        self._rounds.append(_Round(batch, workflow, parents))

    def _is_idle(self) -> bool:
        """Whether no handler has written anything for a while."""
        written = [path.stat().st_mtime for path in self._records.glob("*.jsonl")]
        return time.time() - max(written, default=0.0) > _IDLE_S

    def _open(self, app: Packhorse) -> int:
        return sum(not self._is_over(app, each) for each in self._rounds)

    def _is_over(self, app: Packhorse, given: _Round) -> bool:
        if app.batches.get(given.batch).progress().status in ("pending", "running"):
            return False
        return app.workflows.get(given.workflow).status().is_final

    def is_quiet(self, app: Packhorse) -> bool:
        """Whether all is over, no job is left, and the end of each job has been folded.

        The end of a callback is folded after everything else is over.
        """
        if self._open(app):
            return False
        if not all(record.status.is_final for record in all_jobs(app).values()):
            return False
        return not self._lines(app)

    def _started(self) -> ForkProcess:
        forks = multiprocessing.get_context("fork")
        worker = forks.Process(target=_work, args=(self._url,))
        worker.start()
        return worker

    def _end(self, worker: ForkProcess) -> None:
        worker.kill()
        worker.join()
        self.ended += worker.exitcode != -signal.SIGKILL
        worker.close()

    def collected(self) -> Happened:
        """What happened, from the store and from what the handlers wrote down."""
        with self.app() as app:
            return self._collected(app)

    def _collected(self, app: Packhorse) -> Happened:
        records = all_jobs(app)
        done = [one for one in records.values() if one.status is JobStatus.COMPLETED]
        lines = read_lines(self._records)
        named = {line.job_id: line.note for line in lines if line.event in ("start", "called")}
        called = [named[one.id].split(" ") for one in done if one.task == "called"]
        items = [line.note.split(" ") for line in lines if line.event == "item"]
        return Happened(
            graphs={each.workflow: self._graph(app, each) for each in self._rounds},
            batches={each.batch: self._counted(app, each) for each in self._rounds},
            ran=[(line.event, line.note) for line in lines if line.event in ("start", "end")],
            completions=[named[one.id] for one in done if one.task == "node"],
            callbacks=[(batch, kind) for batch, kind in called],
            items=[(batch, int(number)) for batch, number in items],
            open=[one.id for one in records.values() if one.status is not JobStatus.COMPLETED],
            lines=self._lines(app),
        )

    def _lines(self, app: Packhorse) -> list[str]:
        """Jobs with lines of the journal that are still there."""
        store, left = app.store, list[str]()
        for group in store.run(store.journal.journal_groups(limit=1_000)):
            left += [each.job_id for each in store.run(store.journal.journal(group, limit=1_000))]
        return left

    def _graph(self, app: Packhorse, given: _Round) -> Graph:
        workflow = app.workflows.get(given.workflow)
        info = workflow.info()
        states = {node.name: node.state for node in workflow.nodes()}
        return Graph(given.parents, states, info.completed, str(info.state))

    def _counted(self, app: Packhorse, given: _Round) -> Counted:
        batch = app.batches.get(given.batch)
        at_last, document = batch.progress(), batch.document()
        return Counted(
            items=self._items,
            total=at_last.total,
            processed=at_last.processed,
            succeeded=at_last.succeeded,
            percentage=at_last.percentage,
            status=at_last.status,
            members=document.members,
            ended=document.ended,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run each store asked for, and write the report."""
    return kill_run("structure", STORES, run, _told, page, kills=100, arguments=arguments)


def _told(found: Found) -> str:
    return f"{found.kills} kills in {found.seconds} s, {found.facts}"


def page(found: Sequence[Found]) -> str:
    """The report as Markdown."""
    rows = [f"| | {' | '.join(one.store for one in found)} |", f"| --- |{' ---: |' * len(found)}"]
    values: dict[str, list[object]] = {
        "seconds": [one.seconds for one in found],
        "kills": [one.kills for one in found],
    }
    values |= {fact: [one.facts[fact] for one in found] for fact in found[0].facts}
    for rule in found[0].verdict.findings:
        values[f"**{rule}**, must be 0"] = [len(one.verdict.findings[rule]) for one in found]
    rows += [f"| {name} | {' | '.join(map(str, each))} |" for name, each in values.items()]
    where = [f"- {one.store}: {one.about}" for one in found]
    machine = [f"- {name}: {value}" for name, value in report.machine().items()]
    how = (
        f"`python -m faults.structure --kills {found[0].kills} --seed {found[0].seed}`: three "
        f"workers with a batch of {_ITEMS} items in jobs of {_CHUNK}, with callbacks, and a random "
        f"graph of {_NODES} nodes, and more of both whenever no handler runs; one of the workers "
        f"is killed with SIGKILL every {_BETWEEN_S} s at most. What each rule means is said in "
        "`faults/checking/structure.py`."
    )
    parts = ("# Batches and workflows whose workers are killed", how, "\n".join([*where, *machine]))
    return "\n\n".join([*parts, "\n".join(rows)]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
