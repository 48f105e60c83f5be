# SPDX-License-Identifier: MIT
"""The app: where its store is, what it declares, what it submits, and what it refuses."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pytest

from packhorse import (
    ConfigError,
    FunctionTask,
    JobConflict,
    JobNotFound,
    JobStatus,
    Packhorse,
    PayloadError,
    RetryPolicy,
    ShapeError,
    StoreUnavailable,
    UsageError,
)
from packhorse.client.registry import Registry
from packhorse.client.store_access import Connection
from packhorse.core.clock import SystemClock
from packhorse.events import EventBus, QueueConflict
from packhorse.insights import Insights
from packhorse.stores.memory import MemoryStore
from packhorse.stores.requests import JobFilter
from tests.unit.app_support import HandWorker, memory_app


@pytest.fixture
def app() -> Packhorse:
    return memory_app()


@pytest.fixture
def work(app: Packhorse) -> FunctionTask[[str], str]:
    @app.task
    def work(text: str) -> str:
        return text

    return work


# ------------------------------------------------------------------------------ where it is kept


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PACKHORSE_URL", raising=False)
    monkeypatch.delenv("PACKHORSE_URL_FILE", raising=False)
    return tmp_path


@pytest.mark.usefixtures("here")
def test_declaring_opens_nothing(here: Path) -> None:
    app = Packhorse()
    app.queue("mail")
    app.task(name="work")(lambda: None)

    assert list(here.iterdir()) == []

    app.tasks["work"].enqueue()
    assert (here / "packhorse.db").exists()
    app.close()


def test_an_app_closes_the_store_it_opened_and_opens_it_again(here: Path) -> None:
    app = Packhorse()
    app.task(name="work")(lambda: None)
    job = app.tasks["work"].enqueue()

    app.close()

    assert job.status() is JobStatus.QUEUED
    asyncio.run(app.aclose())


def test_a_call_in_the_midst_of_opening_the_store_is_refused_at_once() -> None:
    """As a signal handler's is that submits; it would wait for the code that it interrupts."""
    connection = Connection(
        lambda: connection.store, registry=Registry(), bus=EventBus(), clock=SystemClock()
    )

    for _ in range(2):
        with pytest.raises(UsageError, match="is just being opened"):
            _ = connection.store


def test_a_store_that_was_given_stays_open() -> None:
    closed = []

    class Given(MemoryStore):
        def close(self) -> None:
            closed.append(True)

    app = Packhorse(store=Given())
    app.depth("default")
    app.close()

    assert closed == []


# ---------------------------------------------------------------------------------- declaring


def test_queues_are_declared_before_the_first_submit(
    app: Packhorse, work: FunctionTask[[str], str]
) -> None:
    app.queue("mail", dead_letter="mail_dead", priority=3, retention="7d")
    app.queue("slow", retry=RetryPolicy(max_retries=9), retention={"dead": "30d", "results": None})
    assert app.store.run(app.store.queues.queues()) == ()

    work.enqueue("a")

    mail, slow = (state.settings for state in app.store.run(app.store.queues.queues())[1:])
    assert (mail.name, mail.priority, mail.dead_letter) == ("mail", 3, "mail_dead")
    assert mail.retention is not None
    assert (mail.retention.finished_us, mail.retention.results_us) == (7 * DAY_US, 7 * DAY_US)
    assert slow.retry is not None
    assert slow.retry.max_retries == 9
    assert slow.retention is not None
    assert (slow.retention.dead_us, slow.retention.results_us) == (30 * DAY_US, None)
    assert slow.retention.finished_us == DAY_US


DAY_US = 24 * 3600 * 1_000_000


def test_a_queue_declared_later_reaches_the_store_too(
    app: Packhorse, work: FunctionTask[[str], str]
) -> None:
    work.enqueue("a")
    app.queue("late", priority=2)

    asyncio.run(work.aenqueue("b"))

    names = [state.settings.name for state in app.store.run(app.store.queues.queues())]
    assert names == ["default", "late"]


def test_two_apps_that_disagree_about_a_queue_are_told(work: FunctionTask[[str], str]) -> None:
    store = MemoryStore()
    first, second = Packhorse(store=store), Packhorse(store=store)
    heard: list[QueueConflict] = []
    second.on("queue.conflict")(heard.append)
    first.queue("mail", priority=1)
    second.queue("mail", priority=2)

    for app in (first, second):
        app.task(name="work")(lambda: None)
        app.tasks["work"].enqueue()

    (conflict,) = heard
    assert conflict.queue == "mail"
    assert '"priority":1' in conflict.before
    assert '"priority":2' in conflict.now


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("", {}, "the name of a queue is ''"),
        ("mail", {"priority": -1}, "queue 'mail': priority is -1"),
        ("mail", {"priority": 2**31}, "queue 'mail': priority is 2147483648"),
        ("mail", {"rate_limit": (10**30, "1s")}, "give 1 to 2147483647"),
        ("mail", {"dead_letter": ""}, "queue 'mail': dead_letter is ''"),
        ("mail", {"retry": 3}, "queue 'mail': retry is 3"),
        ("mail", {"retention": "soon"}, "queue 'mail': retention is 'soon'"),
        ("mail", {"retention": {"result": "1d"}}, "did you mean 'results'?"),
        ("mail", {"deadletter": "x"}, "there is no option 'deadletter'; did you mean"),
        ("mail", {"zzz": 1}, "the options are priority, concurrency, rate_limit"),
    ],
)
def test_a_wrong_queue_option_is_refused(
    app: Packhorse, name: str, options: Any, words: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        app.queue(name, **options)

    assert words in str(raised.value)


def test_a_queue_with_the_name_of_a_shelf_is_refused(
    app: Packhorse, work: FunctionTask[[str], str]
) -> None:
    app.queue("mail", dead_letter="mail_dead")

    with pytest.raises(ConfigError, match="mail_dead"):
        work.using(queue="mail_dead").enqueue("a")


def test_observers_hear_by_name_and_unknown_events_are_refused(app: Packhorse) -> None:
    @app.on("job.*")
    def observe(event: object) -> None: ...

    assert observe.__name__ == "observe"
    with pytest.raises(ConfigError, match=r"did you mean 'job\.started'"):
        app.on("job.startd")(observe)


# --------------------------------------------------------------------------------- submitting


def test_calls_of_several_tasks_go_in_one_round_trip() -> None:
    verbs: list[str] = []
    counting = Packhorse(
        store=MemoryStore(faults=lambda verb, when: verbs.append(f"{verb} {when}"))
    )
    counting.task(name="work")(lambda: None)
    counting.task(name="rest")(lambda: None)
    calls = [counting.tasks["work"].call(), counting.tasks["rest"].call().using(tags=["x"])]
    counting.tasks["work"].enqueue()  # the first asks besides whether the store may be used
    verbs.clear()

    jobs = counting.enqueue_many(calls)

    assert verbs == ["submit before", "submit after"]
    assert [job.info().task for job in jobs] == ["work", "rest"]
    assert len(verbs) == 6
    assert asyncio.run(counting.aenqueue_many([])) == []
    assert len(verbs) == 6  # nothing to store, no store to ask


def test_a_large_payload_is_worth_one_warning_a_task(
    work: FunctionTask[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.warns(UserWarning, match="a payload of task work is 65549 bytes") as warned:
        work.enqueue("x" * 65_538)
    work.enqueue("x" * 65_538)  # a second warning would be an error

    assert [warning.filename for warning in warned] == [__file__]
    assert "a payload of task work is 65549 bytes" in caplog.text


def test_a_payload_beyond_a_mebibyte_is_refused_with_its_size(
    app: Packhorse, work: FunctionTask[[str], str]
) -> None:
    with pytest.raises(PayloadError, match="is 1048588 bytes, and 1048576 are allowed"):
        work.enqueue("x" * (1024 * 1024 + 1))

    assert app.depth("default") == 0


async def test_blocking_an_event_loop_stores_the_job_and_warns_once(
    app: Packhorse, work: FunctionTask[[str], str]
) -> None:
    with pytest.warns(RuntimeWarning, match=r"enqueue\(\) blocks .* await aenqueue\(\)") as warned:
        job = work.enqueue("a")
    work.enqueue_many([{"text": "b"}])  # a second warning would be an error
    app.submit({"id": "c", "type": "work", "payload": {"text": "c"}})

    assert [warning.filename for warning in warned] == [__file__]
    assert await job.astatus() is JobStatus.QUEUED
    assert await app.adepth("default") == 3


def test_no_warning_where_no_loop_runs(work: FunctionTask[[str], str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        work.enqueue("a")


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_store_that_fails_at_submit_says_which_job_and_whether_it_may_be_there(
    moment: Literal["before", "after"],
) -> None:
    trouble = StoreUnavailable("the disk is on fire", maybe_stored=moment == "after")

    def faults(verb: str, when: Literal["before", "after"]) -> None:
        if verb == "submit" and when == moment and failing:
            raise trouble

    app = Packhorse(store=MemoryStore(faults=faults))
    app.task(name="work")(lambda: None)
    task, failing = app.tasks["work"], True

    with pytest.raises(StoreUnavailable, match="the disk is on fire; job order-1 ") as raised:
        task.using(job_id="order-1").enqueue()
    assert (raised.value.job_id, raised.value.maybe_stored) == ("order-1", moment == "after")
    with pytest.raises(StoreUnavailable) as generated:
        asyncio.run(task.aenqueue())

    failing = False
    assert task.using(job_id="order-1").enqueue().deduplicated is (moment == "after")
    job_id = generated.value.job_id
    assert job_id is not None
    assert task.using(job_id=job_id).enqueue().deduplicated is (moment == "after")


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/jobs.db"])
def test_many_threads_submit_through_one_app(url: str, tmp_path: Path) -> None:
    app = Packhorse(url.format(tmp_path))
    app.queue("mail", priority=1)
    app.task(name="work", queue="mail")(lambda: None)
    together = threading.Barrier(8)

    def submit(_: int) -> list[str]:
        together.wait(20)
        return [app.tasks["work"].enqueue().id for _ in range(10)]

    with ThreadPoolExecutor(8) as pool:
        ids = [job_id for some in pool.map(submit, range(8)) for job_id in some]

    assert len(set(ids)) == 80
    assert app.depth("mail") == 80
    app.close()


# ------------------------------------------------------------------------------ steering, tenants


async def test_a_queue_is_paused_and_resumed(
    app: Packhorse, work: FunctionTask[[str], str]
) -> None:
    assert (app.pause("default"), await app.apause("default")) == (True, False)
    await work.aenqueue("a")
    with pytest.raises(ValueError, match="not enough values"):
        HandWorker(app.store, "work").claim()

    assert (await app.aresume("default"), app.resume("default")) == (True, False)
    assert HandWorker(app.store, "work").claim().task == "work"


@pytest.mark.req("S3-39")
async def test_a_tenant_sees_and_touches_its_own_jobs_only(
    app: Packhorse, work: FunctionTask[[str], str]
) -> None:
    mine, other = app.tenant("mine"), app.tenant("other")
    (job,) = await asyncio.to_thread(mine.enqueue_many, [work.call("a")])
    (later,) = await mine.aenqueue_many([work.call("b").using(tags=["x"])])

    theirs = other.job(job.id)
    for verb in (theirs.status, theirs.info, theirs.history, theirs.cancel, theirs.retry):
        with pytest.raises(JobNotFound):
            verb()
    with pytest.raises(JobNotFound):
        await theirs.aresult(timeout=0)

    assert mine.job(job.id).status() is JobStatus.QUEUED
    assert [info.id for info in mine.search()] == [later.id, job.id]
    assert [info.id for info in mine.search(tag="x")] == [later.id]
    assert mine.search(statuses=[JobStatus.DEAD]) == []
    assert await other.asearch() == []
    with pytest.raises(ConfigError, match="did you mean 'tag'"):
        mine.search(tags="x")  # type: ignore[call-arg]
    assert later.cancel() is True
    with pytest.raises(ConfigError, match="for tenant 'other' and was given to the view"):
        await mine.aenqueue_many([work.call("a").using(tenant="other")])


@pytest.mark.req("S3-39")
@pytest.mark.parametrize("name", [None, "", 7, b"mine"])
def test_what_names_no_tenant_sees_nothing(
    app: Packhorse, work: FunctionTask[[str], str], name: Any
) -> None:
    work.using(tenant="mine").enqueue("a")
    work.enqueue("b")

    with pytest.raises(ConfigError, match=r"a tenant's view: tenant is .*not empty"):
        app.tenant(name)
    with pytest.raises(ConfigError, match="insights: tenant is"):
        Insights(app.store, tenant=name)


def test_a_job_without_a_tenant_is_in_no_tenants_view(
    app: Packhorse, work: FunctionTask[[str], str]
) -> None:
    for none in (None, ""):
        job = work.using(tenant="mine").using(tenant=none).enqueue("a")

        assert job.info().tenant == ""
        with pytest.raises(JobNotFound):
            app.tenant("mine").job(job.id).status()


def test_an_id_of_another_job_is_a_conflict_whichever_way_it_comes(
    app: Packhorse, work: FunctionTask[[str], str]
) -> None:
    theirs = app.tenant("theirs")
    (job,) = theirs.enqueue_many([work.call("secret").using(job_id="one")])

    again = theirs.enqueue_many([work.call("secret").using(job_id="one")])
    assert again[0].deduplicated
    for submit in (
        lambda: app.tenant("mine").enqueue_many([work.call("secret").using(job_id="one")]),
        lambda: work.using(job_id="one", tenant="theirs").enqueue("other"),
        lambda: work.using(job_id="one").enqueue("secret"),
        lambda: app.submit({"id": "one", "type": "work", "payload": {"text": "secret"}}),
    ):
        with pytest.raises(JobConflict, match="the id 'one' belongs to another job") as refused:
            submit()
        assert "secret" not in str(refused.value)
        assert "theirs" not in str(refused.value)
    assert job.info().tenant == "theirs"


@pytest.mark.req("S1-47")
def test_jobs_are_dated_and_found_by_their_tags_and_makers(
    app: Packhorse, work: FunctionTask[[str], str]
) -> None:
    tagged = work.using(tags=["red", "big"], created_by="ada").enqueue("a")
    work.using(tags=["blue"]).enqueue("b")
    before = tagged.info()

    found = app.insights.jobs(JobFilter(tag="big")).jobs
    assert [info.id for info in found] == [tagged.id]
    assert found[0].tags == ("red", "big")
    assert [info.id for info in app.insights.jobs(JobFilter(created_by="ada")).jobs] == [tagged.id]

    HandWorker(app.store, "work").complete('"a"')
    after = tagged.info()
    assert after.created_at == before.created_at == before.updated_at
    assert after.updated_at > before.updated_at


# -------------------------------------------------------------------------------- the package


async def test_running_a_worker_inside_an_event_loop_names_its_twin(app: Packhorse) -> None:
    with pytest.raises(UsageError, match=r"await app\.arun\(\)"):
        app.run()


def test_a_wire_task_that_breaks_the_protocol_is_refused(app: Packhorse) -> None:
    with pytest.raises(ShapeError, match=r"\$\.type"):
        app.submit({"id": "a", "type": "Not-A-Name", "payload": {}})


IMPORT = """
import sys
import packhorse
extras = {"psycopg", "redis", "hiredis", "watchfiles", "pydantic"}
late = {"packhorse.runtime.worker", "packhorse.stores.sqlite.store", "sqlite3", "click"}
app = packhorse.Packhorse("memory://")
app.task(name="length")(len)
print(sorted((extras | late | {"asyncio"}) & set(sys.modules)))
app.run(burst=True)
print(sorted({"smtplib", "urllib.request", "importlib.metadata"} & set(sys.modules)))
"""


def test_neither_the_package_nor_a_worker_imports_what_it_may_not_need() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, timeout=50, check=True
    )

    assert finished.stdout.split() == ["[]", "[]"]
