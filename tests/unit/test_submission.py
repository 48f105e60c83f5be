# SPDX-License-Identifier: MIT
"""How the jobs of a bulk submit are divided into transactions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from packhorse import Packhorse
from packhorse.client.submission import _WARNED_MAX, parts
from packhorse.core.job import NewJob
from packhorse.errors import UsageError

MIB = 1_048_576


def jobs(*sizes: int) -> list[NewJob]:
    payloads = {size: bytes(size) for size in set(sizes)}
    return [NewJob(str(number), "work", payloads[size]) for number, size in enumerate(sizes)]


def lengths(of: Sequence[NewJob], *, atomic: bool = False) -> list[int]:
    cut = [list(part) for part in parts(of, atomic=atomic)]
    assert [job for part in cut for job in part] == list(of)
    return [len(part) for part in cut]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((), []),
        ((9 * MIB,), [1]),  # one is never divided
        ((2 * MIB, 2 * MIB), [2]),
        ((2 * MIB, 2 * MIB, 1), [2, 1]),
        ((2 * MIB + 1, 2 * MIB), [1, 1]),
        ((5 * MIB, 5 * MIB), [1, 1]),
        ((3 * MIB, 1, MIB, 2 * MIB, 2 * MIB - 1, 1), [2, 2, 2]),
        ((1,) * 1_000, [1_000]),
        ((0,) * 2_001, [1_000, 1_000, 1]),
        ((1,) * 999 + (4 * MIB, 0), [999, 2]),
    ],
)
def test_a_transaction_takes_a_thousand_jobs_and_four_mebibytes(
    sizes: tuple[int, ...], expected: list[int]
) -> None:
    assert lengths(jobs(*sizes)) == expected


@pytest.mark.parametrize(
    "sizes", [(), (17 * MIB,), (0,) * 5_000, (8 * MIB, 8 * MIB), (16 * MIB, 0)]
)
def test_an_atomic_bulk_is_one_transaction(sizes: tuple[int, ...]) -> None:
    assert lengths(jobs(*sizes), atomic=True) == ([len(sizes)] if sizes else [])


@pytest.mark.parametrize("sizes", [(0,) * 5_001, (8 * MIB, 8 * MIB, 1)])
def test_an_atomic_bulk_that_others_would_wait_for_is_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"takes at most 5000 and 16777216"):
        parts(jobs(*sizes), atomic=True)


@pytest.mark.parametrize("own", ["0", "zz"])  # it sorts before, or after, what an app would choose
def test_an_id_of_ones_own_in_a_bulk_is_looked_for_among_stored_jobs(
    tmp_path: Path, own: str
) -> None:
    app = Packhorse(f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    def work() -> None: ...

    bulks = [app.enqueue_many([work.call(), work.using(job_id=own).call()]) for _ in range(2)]

    assert [[job.deduplicated for job in bulk] for bulk in bulks] == [[False] * 2, [False, True]]
    app.close()


def test_a_queue_whose_name_looks_mistyped_is_warned_of_once() -> None:
    app = Packhorse("memory://")
    app.queue("reports")
    work = app.task(queue="reports", name="work")(lambda: None).using(queue="report")

    with pytest.warns(UserWarning, match="did you mean 'reports'") as seen:
        app.enqueue_many([work.call(), work.call()])

    assert len(seen) == 1
    app.close()


def test_a_program_with_very_many_queues_is_warned_of_the_first_ones_only() -> None:
    app = Packhorse("memory://")
    app.queue("reports")
    work = app.task(queue="reports", name="work")(lambda: None)
    app._submission._warned.update(f"queue q{number}" for number in range(_WARNED_MAX))

    work.using(queue="report").enqueue()  # would be warned of, which fails tests

    assert len(app._submission._warned) == _WARNED_MAX
    app.close()
