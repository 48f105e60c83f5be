# SPDX-License-Identifier: MIT
"""Which tests of the conformance suite run, in which order tests start, and how many at once."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

from tests.support import folders
from tests.support.compiled import compile_all

#: Parts of the names of tests that take seconds. They start first: a run that ends with them would
#: wait for one process while the others have nothing left to do.
_LONG: Final = ("Machine::", "tests/end_to_end/", "tests/supervisor/", "tests/faults/")
#: In seconds, what they may take on a machine that is slow and has much else to do.
_LONG_S: Final = 180


#: Where the suite tries the Redis store again. On a cluster all keys of a namespace lie on one
#: node, and Valkey runs the same scripts as Redis, so a single Redis server shows most of what can
#: be tried there. An ordinary run takes one test in so many, and at least one of each topic, except
#: the state machines.
_SAMPLED: Final = (
    "tests/conformance/test_redis_cluster.py",
    "tests/conformance/test_valkey.py",
)
_SAMPLED_SHARE: Final = 6
#: Of what a worker does on every store, an ordinary run tries each test on one of these.
_SERVERS: Final = ("postgres", "redis")
#: The state machines compare a store with the one in memory; with itself it agrees.
_REFERENCE: Final = "tests/conformance/test_memory.py"

#: `-n auto` runs so many more tests at once than there are cores: half the time of a test goes by
#: while it waits for a process, a server or an instant.
_WORKERS_BESIDE_CORES: Final = 2
#: What the processes of a run import, and those that tests start.
_ROOT: Final = Path(__file__).resolve().parents[1]
_IMPORTED: Final = ("src", "benchmarks", "comparison", "examples", "faults", "scripts", "tests")


#: Where `tmp_path` lies, for the processes of a run too.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(folders.root()))

# No test judges how fast the machine is. Each run draws other examples, so that few are enough.
settings.register_profile(
    "patient", max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare `--conformance`."""
    parser.addoption(
        "--conformance",
        choices=("sample", "all"),
        default="sample",
        help="sample: each test with one of the two runners of a store, few on a cluster and on "
        "Valkey, and what is tried on every store on one of the servers",
    )


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """How many processes `-n auto` means."""
    return _cores() + _WORKERS_BESIDE_CORES


def pytest_configure(config: pytest.Config) -> None:
    """Compile before a run of many processes what all of them import; collect no garbage yet."""
    gc.disable()
    if config.getoption("numprocesses", None):  # of the process that starts the others
        compile_all((_ROOT / folder for folder in _IMPORTED), _cores())


def _cores() -> int:
    is_told = hasattr(os, "sched_getaffinity")  # not everywhere
    return len(os.sched_getaffinity(0)) if is_told else os.cpu_count() or 1


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, None, None]:
    """Do not even make what a sample leaves out, since each process would make it."""
    yield
    if metafunc._calls and _takes_sample(metafunc.config):
        name = metafunc.definition.nodeid
        # One at least: without any, the test would be made without parameters.
        metafunc._calls = [
            call for call in metafunc._calls if not _is_left_out(name, call)
        ] or metafunc._calls[:1]


@pytest.hookimpl(trylast=True)  # after pytest-randomly has shuffled them
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep a sample of the conformance tests, unless asked for all; let long tests start first."""
    if _takes_sample(config):
        left_out = [item for item in items if _is_left_out(item.nodeid, _cases_of(item))]
        gone = set(left_out) - set(_for_topics_without_any(left_out, items))
        if gone:
            config.hook.pytest_deselected(items=sorted(gone, key=lambda item: item.nodeid))
            items[:] = [item for item in items if item not in gone]
    for item in items:
        if _is_long(item) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_LONG_S))
    items.sort(key=lambda item: not _is_long(item))


def _for_topics_without_any(
    left_out: list[pytest.Item], items: list[pytest.Item]
) -> Iterator[pytest.Item]:
    """One test of each topic that the sample would not try on a cluster, or on Valkey, at all."""

    def by_topic(some: Iterable[pytest.Item]) -> dict[tuple[str, ...], pytest.Item]:
        ordered = sorted(some, key=lambda item: item.nodeid, reverse=True)
        found = [one for one in ordered if one.nodeid.startswith(_SAMPLED) and not _is_machine(one)]
        return {tuple(item.nodeid.split("::")[:3]): item for item in found}

    tried = by_topic(set(items).difference(left_out))
    for topic, item in by_topic(left_out).items():
        if topic not in tried:
            yield item


def _is_machine(item: pytest.Item) -> bool:
    return "Machine::" in item.nodeid


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but not among tests, of which there are many."""
    gc.freeze()
    gc.enable()


def _is_long(item: pytest.Item) -> bool:
    return any(part in item.nodeid for part in _LONG)


def _takes_sample(config: pytest.Config) -> bool:
    named = any("::" in argument for argument in config.args)
    return config.getoption("conformance") == "sample" and not named


def _cases_of(item: pytest.Item) -> Any:
    """The parameters of a test, if it has any."""
    return getattr(item, "callspec", None)


def _is_left_out(nodeid: str, call: Any) -> bool:
    """Whether an ordinary run leaves out a test with these parameters; its name decides."""
    test = nodeid.partition("[")[0]
    given = {} if call is None else call.params
    store: str | None = given.get("packhorse_url") or given.get("depot")
    if store in _SERVERS:
        return store != _SERVERS[crc32(test.encode()) % len(_SERVERS)]
    if not nodeid.startswith("tests/conformance/"):
        return False
    if nodeid.startswith(_REFERENCE) and "Machine::" in nodeid:
        return True
    runner: str | None = given.get("runner")
    parts = [test, *(() if call is None else call.id.split("-"))]
    name = "-".join(part for part in parts if part != runner)
    from packhorse.testing.conformance.trial import RUNNERS  # most runs need none of its modules

    chosen, runners = crc32(name.encode()), len(RUNNERS)
    if nodeid.startswith(_SAMPLED) and chosen // runners % _SAMPLED_SHARE:
        return True
    return runner is not None and runner != RUNNERS[chosen % runners]
