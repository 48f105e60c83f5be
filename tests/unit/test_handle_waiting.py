# SPDX-License-Identifier: MIT
"""Results are waited for on wake-ups: from threads, event loops, forks and other processes."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from packhorse import Packhorse, ResultTimeout, UsageError
from packhorse.client import waiting
from packhorse.stores.memory import MemoryStore
from packhorse.stores.plan import Plan
from tests.unit.app_support import HandWorker

T = TypeVar("T")

WAIT_S = 20


class WatchedStore(MemoryStore):
    """A memory store that tells when a caller has begun to wait for a job."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = threading.Semaphore(0)
        self.reads = 0

    async def arun(self, plan: Plan[T]) -> T:
        answer = await super().arun(plan)
        self.reads += not plan.writes
        if plan.verb == self.jobs.await_finish("").verb:
            self.waiting.release()
        return answer


@pytest.fixture
def store() -> WatchedStore:
    return WatchedStore()


@pytest.fixture
def app(store: WatchedStore) -> Iterator[Packhorse]:
    app = Packhorse(store=store)
    app.task(name="work")(work)
    yield app
    app.close()


def work() -> int:
    return 1


@pytest.fixture
def no_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiter looks by itself, so that only a wake-up can end a wait in time."""
    monkeypatch.setattr(waiting, "WAIT_FLOOR_S", 3600.0)


def in_thread(function: Callable[[], T]) -> Callable[[], T]:
    """Begin `function` in a thread; the answer waits for it."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(function)
    pool.shutdown(wait=False)
    return lambda: future.result(WAIT_S)


@pytest.mark.usefixtures("no_floor")
def test_a_waiting_thread_is_woken_when_the_job_finishes(
    app: Packhorse, store: WatchedStore
) -> None:
    job = app.tasks["work"].enqueue()
    answer = in_thread(job.result)
    assert store.waiting.acquire(timeout=WAIT_S)

    HandWorker(store, "work").complete("42")

    assert answer() == 42
    assert store.reads == 1  # after the wake-up; it did not poll


def test_who_waits_for_what_does_not_happen_hardly_ever_looks(
    app: Packhorse, store: WatchedStore
) -> None:
    job = app.tasks["work"].enqueue()

    with pytest.raises(ResultTimeout):
        job.result(timeout=0.2)

    assert store.reads <= 2  # when the time is over, and once more if a timer was early


@pytest.mark.usefixtures("no_floor")
async def test_a_waiting_coroutine_is_woken_when_the_job_finishes(
    app: Packhorse, store: WatchedStore
) -> None:
    job = await app.tasks["work"].aenqueue()
    async with asyncio.timeout(WAIT_S):
        waiter = asyncio.create_task(job.aresult())
        while not store.waiting.acquire(blocking=False):
            await asyncio.sleep(0)
        HandWorker(store, "work").complete("42")

        assert await waiter == 42


def test_a_lost_wake_up_only_costs_the_floor(
    app: Packhorse, store: WatchedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "WAIT_FLOOR_S", 0.01)
    monkeypatch.setattr(store.wakeups, "send", lambda topics: None)
    job = app.tasks["work"].enqueue()
    answer = in_thread(lambda: job.result(timeout=3600))
    assert store.waiting.acquire(timeout=WAIT_S)

    HandWorker(store, "work").complete("42")

    assert answer() == 42


@pytest.mark.usefixtures("no_floor")
def test_many_threads_wait_through_one_thread(app: Packhorse, store: WatchedStore) -> None:
    before = set(threading.enumerate())
    jobs = app.enqueue_many([app.tasks["work"].call() for _ in range(20)])
    answers = [in_thread(job.result) for job in jobs]
    for _ in jobs:
        assert store.waiting.acquire(timeout=WAIT_S)

    worker = HandWorker(store, "work")
    for number in range(20):
        worker.complete(str(number))

    assert [answer() for answer in answers] == list(range(20))
    begun = set(threading.enumerate()) - before
    (serving,) = [thread for thread in begun if thread.name == "packhorse-waits"]
    assert serving.daemon


def test_the_serving_thread_goes_with_its_app() -> None:
    app = Packhorse("memory://")
    before = set(threading.enumerate())
    with pytest.raises(TimeoutError):
        app.submit({"id": "a", "type": "work", "payload": None}).result(timeout=0)
    (serving,) = set(threading.enumerate()) - before

    del app
    gc.collect()

    serving.join(WAIT_S)
    assert not serving.is_alive()


def test_closing_the_app_ends_its_waits(app: Packhorse, store: WatchedStore) -> None:
    answer = in_thread(app.tasks["work"].enqueue().result)
    assert store.waiting.acquire(timeout=WAIT_S)

    app.close()

    with pytest.raises(UsageError, match="closed while a result was waited for"):
        answer()


def test_an_interrupted_wait_leaves_nothing_behind(
    app: Packhorse, store: WatchedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = app.tasks["work"].enqueue()
    listening = store.wakeups._listeners

    def interrupted(future: Any, timeout: float | None = None) -> Any:
        assert store.waiting.acquire(timeout=WAIT_S)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("concurrent.futures.Future.result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            job.result()

    for _ in range(3):  # the loop turns, so that what was cancelled ends
        app._connection.wait(lambda store: asyncio.sleep(0))
    assert listening == {}


def test_one_app_serves_one_event_loop_after_another(tmp_path: Path) -> None:
    app = Packhorse(f"sqlite:///{tmp_path}/jobs.db")
    app.task(name="work")(work)

    async def round_trip(number: int) -> Any:
        job = await app.tasks["work"].aenqueue()
        waiter = asyncio.create_task(job.aresult(timeout=WAIT_S))
        await asyncio.to_thread(HandWorker(app.store, "work").complete, str(number))
        return await waiter

    assert [asyncio.run(round_trip(number)) for number in range(3)] == [0, 1, 2]
    app.close()


def test_two_event_loops_may_wait_at_once(tmp_path: Path) -> None:
    app = Packhorse(f"sqlite:///{tmp_path}/jobs.db")
    app.task(name="work")(work)
    jobs = app.enqueue_many([app.tasks["work"].call() for _ in range(4)])
    answers = [in_thread(lambda job=job: asyncio.run(job.aresult(WAIT_S))) for job in jobs]  # type: ignore[misc]

    worker = HandWorker(app.store, "work")
    for number in range(4):
        worker.complete(str(number))

    assert [answer() for answer in answers] == [0, 1, 2, 3]
    app.close()


FORKED = """
import os, sys
from packhorse import Packhorse
from tests.unit.app_support import HandWorker

app = Packhorse(sys.argv[1])

@app.task
def work(number: int) -> int:
    return number

# As a web server that loads the app before it forks: the store is open, the wait loop runs.
first = work.enqueue(0)
HandWorker(app.store, "work").complete("0")
assert first.result(timeout=20) == 0
pending = work.enqueue(1)
try:
    pending.result(timeout=0.01)
except TimeoutError:
    pass
else:
    raise AssertionError("it was not run")

children = []
for number in range(3):
    child = os.fork()
    if child == 0:
        job = work.using(job_id=f"child-{number}", queue=f"q{number}").enqueue(number)
        try:
            job.result(timeout=0.01)  # needs a wait loop of its own
        except TimeoutError:
            HandWorker(app.store, "work", queues=(f"q{number}",)).complete(str(number * 10))
            os._exit(0 if job.result(timeout=20) == number * 10 else 3)
        os._exit(4)
    children.append(child)

codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
assert codes == [0, 0, 0], codes
for number in range(3):  # and the parent goes on, and sees what its children did
    assert app.job(f"child-{number}").result(timeout=20) == number * 10
HandWorker(app.store, "work").complete("1")
assert pending.result(timeout=20) == 1
app.close()
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is nothing to fork here")
def test_a_forked_child_submits_and_waits_by_itself(tmp_path: Path) -> None:
    finished = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            FORKED,
            f"sqlite:///{tmp_path}/jobs.db",
        ],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )

    assert (finished.stdout.strip(), finished.stderr) == ("done", "")
