# SPDX-License-Identifier: MIT
"""What handlers log is kept with their jobs: within bounds, redacted, sealed, and read again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from packhorse import (
    ConfigError,
    Context,
    Encryption,
    JobNotFound,
    JobStatus,
    Packhorse,
    RetryPolicy,
)
from packhorse.client.encryption import new_key
from packhorse.client.sealed_store import plain_store
from packhorse.core.job_logs import LogLines, RunningJob, log_level, log_lines_of
from packhorse.core.policies.attachments import VALUE_BYTES_MAX, Attachments
from packhorse.core.redaction import redact_default
from packhorse.errors import PayloadError, StoreUnavailable
from packhorse.stores.memory import MemoryStore
from packhorse.testing import TestApp, use
from tests.servers.postgres import postgres_url
from tests.servers.redis import redis_url

LOG = logging.getLogger("shop.orders")
Once = RetryPolicy(max_retries=0)
Twice = RetryPolicy(max_retries=1)


@pytest.fixture(autouse=True)
def _at_debug() -> Iterator[None]:
    """As a program that logs everything."""
    LOG.setLevel(logging.DEBUG)
    yield
    LOG.setLevel(logging.NOTSET)


@pytest.fixture
def packhorse_url() -> str:
    return "sqlite://"


def told(job: Any) -> list[tuple[int, str, str]]:
    return [(line.attempt, line.level, line.message) for line in job.logs()]


# ------------------------------------------------------------------------------- what is kept


@pytest.mark.parametrize("url", ["memory", "sqlite", "postgres", "redis"])
def test_lines_of_all_attempts_are_kept_on_every_store(url: str, tmp_path: Any) -> None:
    given = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/jobs.db"}
    chosen = {"postgres": postgres_url, "redis": redis_url}
    app = Packhorse("memory://")

    @app.task(retry=Twice)
    async def ship(ctx: Context, number: int) -> int:
        LOG.info("shipping %d", number)
        if ctx.job.attempt == 1:
            LOG.warning("no truck")
            raise OSError("no truck")
        return number

    @app.task
    def quiet() -> None:
        LOG.debug("not kept")

    place = given.get(url) or chosen[url]()
    with use(app, place) as tested:
        job, other = ship.enqueue(7), quiet.enqueue()
        tested.run_jobs()

        assert told(job) == [
            (1, "info", "shipping 7"),
            (1, "warning", "no truck"),
            (2, "info", "shipping 7"),
        ]
        assert {line.logger for line in job.logs()} == {"shop.orders"}
        assert asyncio.run(job.alogs()) == job.logs()
        assert (job.result(), other.logs()) == (7, ())
        stored = tested.store.run(tested.store.inspection.job(other.id))
        assert stored is not None
        assert stored.options is None or not stored.options.attached  # and nothing was written


def test_a_thread_and_what_it_starts_log_for_their_own_job(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    def ship(number: int) -> None:
        LOG.info("shipping %d", number)

    @packhorse_app.task
    async def count(number: int) -> None:
        await asyncio.to_thread(LOG.info, "counting %d", number)

    jobs = [task.enqueue(number) for number in range(5) for task in (ship, count)]
    packhorse_app.run_jobs()

    assert [told(job) for job in jobs] == [
        [(1, "info", f"{what} {number}")]
        for number in range(5)
        for what in ("shipping", "counting")
    ]


def test_an_exception_that_is_logged_comes_with_its_traceback(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    def ship(ctx: Context) -> None:
        try:
            open("/no/truck")  # noqa: PTH123, SIM115 - raises
        except OSError:
            ctx.log.exception("not shipped")
        LOG.info("%d", "not a number")  # what `logging` cannot write is not kept either

    logging.raiseExceptions, before = False, logging.raiseExceptions
    job = ship.enqueue()
    packhorse_app.run_jobs()
    logging.raiseExceptions = before

    [(_, level, message)] = told(job)
    assert level == "error"
    assert message.startswith("not shipped\nTraceback")
    assert message.endswith("'/no/truck'")


def test_filters_of_a_logger_hold_for_what_is_kept(packhorse_app: TestApp) -> None:
    class Careful(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            record.args = ("****",)
            return record.msg != "noise %s"

    @packhorse_app.task
    def ship() -> None:
        LOG.info("noise %s", 1)
        LOG.info("card %s", 4711)

    careful = Careful()
    LOG.addFilter(careful)
    try:
        job = ship.enqueue()
        packhorse_app.run_jobs()
    finally:
        LOG.removeFilter(careful)

    assert told(job) == [(1, "info", "card ****")]


def test_lines_of_attempts_that_are_ended_are_kept() -> None:
    app = Packhorse("memory://")

    @app.task(retry=Once, timeout="50ms")
    async def slow() -> None:
        LOG.info("begun")
        await asyncio.sleep(60)

    @app.task(retry=Once)
    async def cancelled(ctx: Context) -> None:
        LOG.info("begun")
        await app.job(ctx.job.id).acancel()
        await asyncio.sleep(60)

    jobs = [slow.enqueue(), cancelled.enqueue()]
    app.run(burst=True, handle_signals=False)

    assert [job.status() for job in jobs] == [JobStatus.DEAD, JobStatus.CANCELLED]
    assert [told(job) for job in jobs] == [[(1, "info", "begun")]] * 2


def test_lines_are_committed_with_a_transaction(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    def book(ctx: Context, number: int) -> int:
        with ctx.transaction() as tx:
            LOG.info("booking %d", number)
            tx.complete(number)
        return 0

    job = book.enqueue(7)
    packhorse_app.run_jobs()

    assert (job.result(), told(job)) == (7, [(1, "info", "booking 7")])


def test_a_retry_finds_its_steps_beside_the_lines(packhorse_app: TestApp) -> None:
    calls: list[int] = []

    @packhorse_app.task(retry=Twice)
    def ship(ctx: Context) -> None:
        LOG.info("attempt")
        ctx.step("pack", lambda: calls.append(1))
        if ctx.job.attempt == 1:
            raise OSError("no truck")

    job = ship.enqueue()
    packhorse_app.run_jobs()

    assert calls == [1]
    assert [line.attempt for line in job.logs()] == [1, 2]
    assert [step.name for step in job.info().steps] == ["pack"]


# ------------------------------------------------------------------------------------- bounds


def lines_of(number: int, text: str = "line {}", attempt: int = 1) -> list[str]:
    lines = LogLines()
    for each in range(number):
        lines.add(each, logging.INFO, "shop", text.format(each))
    [(name, value)] = lines.kept(attempt, redact_default).items()
    assert len(value) <= VALUE_BYTES_MAX * 3 // 4 - 1_000  # encrypted it is longer by a third
    record: Any = SimpleNamespace(id="one")
    return [line.message for line in log_lines_of(record, Attachments({name: value}))]


def test_of_many_lines_the_first_and_the_last_are_kept() -> None:
    assert lines_of(200) == [f"line {number}" for number in range(200)]

    lines = lines_of(512)
    assert lines[:100] == [f"line {number}" for number in range(100)]
    assert lines[100] == "… 312 lines left out …"
    assert lines[101:] == [f"line {number}" for number in range(412, 512)]


@pytest.mark.parametrize("number", [60, 150, 500])
def test_of_long_lines_fewer_are_kept(number: int) -> None:
    lines = lines_of(number, "{} " + 3_000 * "x")

    [at] = [at for at, line in enumerate(lines) if "left out" in line]
    assert lines[at] == f"… {number - len(lines) + 1} lines left out …"
    assert lines[0].startswith("0 ")
    assert lines[-1].startswith(f"{number - 1} ")
    assert {len(line) for at_, line in enumerate(lines) if at_ != at} == {2_000}
    assert 8 < at < len(lines) - 8


def test_of_many_attempts_the_first_and_the_last_are_kept() -> None:
    names = {
        attempt: next(iter(LogLines().kept(attempt, redact_default))) for attempt in range(1, 41)
    }

    left = {name: attempt for attempt, name in names.items()}
    assert sorted(left.values()) == [1, 2, *range(33, 41)]


# --------------------------------------------------------------------- secrets and strangers


def test_secrets_are_masked_before_lines_are_stored(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    def login() -> None:
        LOG.info("password=hunter2 for ada")
        LOG.info("%s token=hunter2", "x" * 1_990)

    job = login.enqueue()
    packhorse_app.run_jobs()

    assert told(job)[0] == (1, "info", "password=[redacted] for ada")
    kept = packhorse_app.store.run(packhorse_app.store.attachments.attachments(job.id))
    assert kept is not None
    assert b"hunter" not in b"".join(kept.values.values())


def test_lines_are_sealed_where_values_are() -> None:
    app = Packhorse("memory://", encryption=Encryption({"k1": new_key()}))

    @app.task
    def ship() -> None:
        LOG.info("for ada")

    job = ship.enqueue()
    app.run(burst=True, handle_signals=False)
    store = plain_store(app.store)
    kept = store.run(store.attachments.attachments(job.id))

    assert kept is not None
    assert [value.startswith(b'{"$enc":"k1') for value in kept.values.values()] == [True]
    assert told(job) == [(1, "info", "for ada")]


def test_a_tenant_reads_its_own_lines_alone(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    def ship() -> None:
        LOG.info("for ada")

    [job] = packhorse_app.tenant("ada").enqueue_many([ship.call()])
    packhorse_app.run_jobs()

    assert told(packhorse_app.tenant("ada").job(job.id)) == [(1, "info", "for ada")]
    with pytest.raises(JobNotFound):
        packhorse_app.tenant("bob").job(job.id).logs()


# ------------------------------------------------------------------------- levels and trouble


def test_the_level_is_chosen_and_none_keeps_nothing() -> None:
    for level, kept in (("debug", ["a", "b"]), ("WARNING", ["b"]), (None, [])):
        app = Packhorse("memory://", job_logs=level)

        @app.task
        def ship() -> None:
            LOG.debug("a")
            LOG.warning("b")

        with use(app, "memory://") as tested:
            job = ship.enqueue()
            tested.run_jobs()
            assert [line.message for line in job.logs()] == kept
    with pytest.raises(ConfigError, match="give a level such as 'info'"):
        log_level("loud")


def test_a_process_sends_lines_of_other_levels_too() -> None:
    job: Any = None
    running = RunningJob(job, "w", "ship", logging.WARNING)
    for level in (logging.INFO, logging.WARNING):
        assert running.lines is None
        running.log(1, level, "shop", "line")

    assert running.lines is not None


def test_nothing_else_of_logging_changes(capsys: pytest.CaptureFixture[str]) -> None:
    """No handler is added: a warning of a program without any still reaches stderr."""
    before = list(logging.getLogger().handlers)
    app = Packhorse("memory://")

    @app.task
    def ship() -> None:
        assert logging.getLogger().handlers == before
        logging.makeLogRecord({"msg": "made by hand"})

    with use(app, "memory://") as tested:
        job = ship.enqueue()
        tested.run_jobs()
        assert (job.status(), job.logs()) == (JobStatus.COMPLETED, ())


class Trouble:
    """A store that fails at some writes of values."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    def __call__(self, verb: str, moment: str) -> None:
        if verb == "attach" and moment == "before" and self.errors:
            raise self.errors.pop(0)


def test_lines_wait_for_a_store_and_never_for_room(caplog: pytest.LogCaptureFixture) -> None:
    trouble = Trouble()
    app = Packhorse(store=MemoryStore(faults=trouble))

    @app.task
    async def ship(number: int) -> None:
        LOG.info("shipping %d", number)

    for error, lost in ((StoreUnavailable("away"), 0), (PayloadError("no room"), 1)):
        trouble.errors = [error, error]
        jobs = [ship.enqueue(number) for number in range(3)]
        app.run(burst=True, handle_signals=False)

        assert [job.status() for job in jobs] == [JobStatus.COMPLETED] * 3
        assert sum(not job.logs() for job in jobs) == lost
    assert caplog.text.count("logged is not kept: no room") == 1
