# SPDX-License-Identifier: MIT
"""Which tests of the conformance suite run, in which order tests start, and how many at once."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Final
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


#: On a cluster all keys of a namespace lie on one node, so that most of what can be tried there is
#: tried on a single server already: an ordinary run takes one test in so many there.
_CLUSTER: Final = "tests/conformance/test_redis_cluster.py"
_CLUSTER_SHARE: Final = 6
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
        help="sample: each test with one of the two runners of a store, and few on a cluster",
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


@pytest.hookimpl(trylast=True)  # after pytest-randomly has shuffled them
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep a sample of the conformance tests, unless asked for all; let long tests start first."""
    named = any("::" in argument for argument in config.args)
    if config.getoption("conformance") == "sample" and not named:
        left_out = [item for item in items if _is_left_out(item)]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if not _is_left_out(item)]
    for item in items:
        if _is_long(item) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_LONG_S))
    items.sort(key=lambda item: not _is_long(item))


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but not among tests, of which there are many."""
    gc.freeze()
    gc.enable()


def _is_long(item: pytest.Item) -> bool:
    return any(part in item.nodeid for part in _LONG)


def _is_left_out(item: pytest.Item) -> bool:
    """Whether an ordinary run leaves out the test, which its name decides."""
    if not item.nodeid.startswith("tests/conformance/"):
        return False
    if item.nodeid.startswith(_REFERENCE) and "Machine::" in item.nodeid:
        return True
    runner: str | None = None
    name = item.nodeid
    if hasattr(item, "callspec"):
        runner = item.callspec.params.get("runner")
        parts = [item.nodeid.partition("[")[0], *item.callspec.id.split("-")]
        name = "-".join(part for part in parts if part != runner)
    from packhorse.testing.conformance.trial import RUNNERS  # most runs need none of its modules

    chosen, runners = crc32(name.encode()), len(RUNNERS)
    if item.nodeid.startswith(_CLUSTER) and chosen // runners % _CLUSTER_SHARE:
        return True
    return runner is not None and runner != RUNNERS[chosen % runners]
