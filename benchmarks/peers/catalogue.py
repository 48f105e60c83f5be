# SPDX-License-Identifier: MIT
"""Who the peers are, how each is started, and how it is set: as its documentation says is fast."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.contestants import Contestant
from benchmarks.peers.environments import (
    Absent,
    Version,
    node_modules,
    node_pinned,
    pinned,
    python_programs,
)
from benchmarks.peers.server import SERVER
from benchmarks.processes import ROOT
from benchmarks.stage import PeerNote

_OLDEST: Final[Version] = (3, 11)
#: Packages that are told with a peer's own: how it reaches its server.
_BESIDE: Final = ("taskiq-redis", "redis", "asyncpg", "psycopg", "ioredis", "pg")
#: Its counter says nothing about completion, so there is nothing to wait for after the last job.
_ALL: Final = 2**62


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer on one store."""

    name: str
    label: str
    store: str
    package: str  #: whose version is told
    command: Sequence[str]  #: of its worker; the first word is a program of its environment
    settings: str  #: how it is set, for the report
    pace: float  #: its rough speed: 1 is two thousand jobs a second
    one: bool = False  #: submits from sync code
    async_one: bool = True  #: submits from async code
    many: bool = False  #: has a bulk submit
    minimum: Version = _OLDEST

    @property
    def module(self) -> str:
        """Where its jobs are declared."""
        return f"benchmarks.peers.{self.name}_app"

    @property
    def is_python(self) -> bool:
        return self.command[0] != "node"

    @property
    def version(self) -> str:
        """The package that is installed for it, and with what."""
        packages = pinned(self.name) if self.is_python else node_pinned(self.name)
        told = [name for name in (self.package, *_BESIDE) if name in packages]
        return ", ".join(f"{name} {packages[name]}" for name in told)


@dataclass(frozen=True, slots=True)
class Peers:
    """Those who take part in a run, and what the report says about all."""

    contestants: Mapping[str, Contestant]  #: by name
    notes: Sequence[PeerNote]

    def chosen(self, test: Callable[[Peer], bool]) -> list[Contestant]:
        """The peers for which it is true, in the order of the catalogue."""
        return [self.contestants[one.name] for one in PEERS if self._has(one) and test(one)]

    def _has(self, peer: Peer) -> bool:
        return peer.name in self.contestants


def _module(name: str) -> tuple[str, ...]:
    return ("python", "-m", f"benchmarks.peers.{name}_app")


def _script(name: str, slots: int) -> tuple[str, ...]:
    return ("node", str(ROOT / "benchmarks" / "peers" / name / "worker.cjs"), str(slots))


PEERS: Final = (
    Peer(
        name="dramatiq",
        label="Dramatiq",
        store="redis",
        package="dramatiq",
        command=(
            *("dramatiq", "--processes", "1", "--threads", "8"),
            "benchmarks.peers.dramatiq_app",
        ),
        settings="one process, 8 threads (its default); no results; no bulk submit, no async one",
        pace=1.0,
        one=True,
        async_one=False,
    ),
    Peer(
        name="taskiq",
        label="taskiq",
        store="redis",
        package="taskiq",
        command=(
            *("taskiq", "worker", "--workers", "1", "--log-level", "WARNING"),
            "benchmarks.peers.taskiq_app:broker",
        ),
        settings="Redis streams, one process, 100 async slots (its default), uvloop; no results; "
        "no bulk submit",
        pace=1.0,
    ),
    Peer(
        name="huey",
        label="Huey",
        store="redis",
        package="huey",
        command=(
            *("huey_consumer", "--quiet", "--workers", "8", "--worker-type", "thread"),
            "benchmarks.peers.huey_app.huey",
        ),
        settings="8 threads; no results; no bulk submit, no async one",
        pace=0.5,
        one=True,
        async_one=False,
    ),
    Peer(
        name="celery",
        label="Celery",
        store="redis",
        package="celery",
        command=(
            *("celery", "-A", "benchmarks.peers.celery_app", "worker", "--loglevel", "WARNING"),
            *("--pool", "prefork", "--concurrency", "2"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        ),
        settings="prefork with 2 processes, acknowledged late, 100 fetched ahead for each, no "
        "gossip; no results; no bulk submit, no async one",
        pace=0.35,
        one=True,
        async_one=False,
    ),
    Peer(
        name="arq",
        label="arq",
        store="redis",
        package="arq",
        command=_module("arq"),
        settings="100 slots, a look every 10 ms, uvloop; no results; no bulk submit",
        pace=0.4,
    ),
    Peer(
        name="saq",
        label="SAQ",
        store="redis",
        package="saq",
        command=_module("saq"),
        settings="20 slots, uvloop; results as it comes; no bulk submit",
        pace=0.4,
    ),
    Peer(
        name="bullmq",
        label="BullMQ (Node)",
        store="redis",
        package="bullmq",
        command=_script("bullmq", 100),
        settings="100 slots; finished jobs are removed; bulk submit by `addBulk`",
        pace=10.0,  # as many as ours: its compiler needs some thousand to warm up
        many=True,
    ),
    Peer(
        name="pgqueuer",
        label="PgQueuer",
        store="postgres",
        package="pgqueuer",
        command=_module("pgqueuer"),
        settings="batches of 100, asyncpg, uvloop; bulk submit by lists; no sync one",
        pace=4.0,
        many=True,
    ),
    Peer(
        name="oban",
        label="Oban",
        store="postgres",
        package="oban",
        command=_module("oban"),
        settings="100 slots, ten connections, uvloop; bulk submit by `enqueue_many`; no sync one",
        pace=1.0,
        many=True,
        minimum=(3, 12),
    ),
    Peer(
        name="graphile",
        label="Graphile Worker (Node)",
        store="postgres",
        package="graphile-worker",
        command=_script("graphile", 24),
        settings="24 slots, twelve connections, a local queue of 500, completions in batches; bulk "
        "submit by `addJobs`",
        pace=10.0,  # as many as ours, as for BullMQ
        many=True,
    ),
    Peer(
        name="procrastinate",
        label="Procrastinate",
        store="postgres",
        package="procrastinate",
        command=_module("procrastinate"),
        settings="50 slots, twenty connections, uvloop; bulk submit by `batch_defer`",
        pace=0.2,
        one=True,
        many=True,
    ),
    Peer(
        name="awa",
        label="awa",
        store="postgres",
        package="awa-pg",
        command=_module("awa"),
        settings="queue storage, 256 slots, its own runtime in Rust; bulk submit by COPY",
        pace=1.0,
        one=True,
        many=True,
    ),
)


def invited(
    store: str,
    names: Sequence[str] | None,
    server: Callable[[Path], str],
    say: Callable[[str], None],
) -> Peers:
    """The peers of a store, or those that are named, each with its environment."""
    contestants: dict[str, Contestant] = {}
    notes: list[PeerNote] = []
    for peer in _of(store):
        absent = ""
        if names is not None and peer.name not in names:
            absent = "left out of this run"
        else:
            say(f"the environment of {peer.label}")
            try:
                contestants[peer.name] = _contestant(peer, server)
            except Absent as reason:
                absent = str(reason)
                say(f"  not measured: {reason}")
        notes.append(PeerNote(peer.label, peer.version, peer.settings, absent))
    return Peers(contestants, notes)


def _of(store: str) -> Iterable[Peer]:
    return (peer for peer in PEERS if peer.store == store)


def _contestant(peer: Peer, server: Callable[[Path], str]) -> Contestant:
    if not peer.is_python:
        return _node_contestant(peer, server)
    programs = python_programs(peer.name, peer.minimum)
    first, *rest = peer.command
    python = str(programs / "python")
    return Contestant(
        label=peer.label,
        program=peer.name,
        environment=lambda folder: {SERVER: server(folder), "PYTHONPATH": str(ROOT)},
        worker=lambda _: [str(programs / first), *rest],
        finished=lambda _: _ALL,
        producer=lambda way: [python, "-m", "benchmarks.peers.submitting", peer.module, way],
        pace=peer.pace,
        several=True,
    )


def _node_contestant(peer: Peer, server: Callable[[Path], str]) -> Contestant:
    packages = node_modules(peer.name)
    script = str(ROOT / "benchmarks" / "peers" / peer.name / "producer.cjs")
    return Contestant(
        label=peer.label,
        program=peer.name,
        environment=lambda folder: {SERVER: server(folder), "NODE_PATH": str(packages)},
        worker=lambda _: list(peer.command),
        finished=lambda _: _ALL,
        producer=lambda way: ["node", script, way],
        pace=peer.pace,
    )
