# SPDX-License-Identifier: MIT
"""A worker leaves nothing behind: not per job, per retry, per cancel, or per reconnect.

Objects are counted, since what the system says about memory is noise in so short a run. The long
one, which looks at memory, is `make leaks`.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import msgspec
import pytest

from benchmarks.leaks.counting import Growth
from benchmarks.leaks.watching import Sample, judged
from tests.end_to_end.support import ROOT
from tests.support.twins import ordinarily_on

JOBS: Final = "8000"
#: Of each type that is ours, or a driver's, or the event loop's; fewer than retries, cancels, cuts.
OURS: Final = ("packhorse.", "asyncio.", "psycopg", "redis.", "hiredis", "socket", "_socket")
OURS_MAX: Final = 15
#: Timers that were cancelled stay with the event loop until their time: some hundred at most.
TIMERS: Final = "asyncio.events.TimerHandle"
#: Each is born in a context of its own.
CONTEXTS: Final = "_contextvars.Context"
#: Each connection of sqlite3 remembers up to 200 cursors that are gone, and there are some; one for
#: each job would be many more.
CURSORS: Final = "weakref.ReferenceType"
CURSORS_MAX: Final = 4_000
#: Of everything else: less than one object for each job that ran twice.
OBJECTS_MAX: Final = 500
#: Less than a small thing kept for each job would take, beside some table that has just doubled.
BYTES_PER_JOB_MAX: Final = 16
TABLE_BYTES: Final = 256 * 1024
TIMEOUT_S: Final = 150


@pytest.mark.req("S2-19")
@pytest.mark.timeout(TIMEOUT_S + 10)
@pytest.mark.parametrize("store", ordinarily_on("sqlite"))
def test_nothing_is_left_of_jobs_retries_cancels_and_connections(store: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.leaks.counting", "--store", store, "--jobs", JOBS],
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=TIMEOUT_S,
    )

    assert done.returncode == 0, done.stderr.decode()[-2_000:]
    growth = msgspec.json.decode(done.stdout, type=Growth)
    ours = {name: more for name, more in growth.types.items() if name.startswith(OURS)}
    ours.pop(TIMERS, None)
    assert growth.retried >= 100, growth
    assert growth.cancelled >= 40, growth
    assert growth.cut >= (0 if store == "sqlite" else 10), growth
    assert max(ours.values(), default=0) <= OURS_MAX, growth
    assert growth.types.get(CURSORS, 0) <= CURSORS_MAX, growth
    passing = sum(growth.types.get(name, 0) for name in (TIMERS, CONTEXTS, CURSORS))
    assert growth.objects - passing <= OBJECTS_MAX, growth
    assert growth.size <= TABLE_BYTES + growth.jobs * BYTES_PER_JOB_MAX, growth
    assert abs(growth.descriptors) <= 3, growth


def test_a_worker_that_grows_is_told_from_one_that_does_not() -> None:
    flat = [Sample(n * 10_000, 40 + n % 2, 19 + n % 2, 105) for n in range(1, 40)]
    grows = [Sample(n * 10_000, 40 + n * 0.2, 19, 105) for n in range(1, 40)]
    leaks = [Sample(n * 10_000, 40, 19 + n, 105) for n in range(1, 40)]

    assert judged(flat).flat
    assert judged(grows).growth_mib == pytest.approx(2.0)
    assert not judged(grows).flat
    assert not judged(leaks).flat
    assert judged(grows[:10]).flat  # so short a run says nothing about memory
    assert "too short" in judged(grows[:10]).verdict
    assert not judged(leaks[:18]).flat
