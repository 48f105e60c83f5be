# SPDX-License-Identifier: MIT
"""A deploy with jobs waiting: old payloads are moved forward, newer ones wait for newer code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from packhorse import Contract, JobStatus, Packhorse
from packhorse.core.clock import SECOND_US, SystemClock, new_id
from packhorse.core.job import JobOptions, NewJob
from packhorse.core.versions import OTHER_VERSION
from packhorse.errors import ContractError

NewApp = Callable[[], Packhorse]


def release_1(app: Packhorse) -> Any:
    @app.task(contract=Contract(worker_id="payer", version="1"))
    async def pay(euros: int) -> int:
        return euros

    return pay


def release_3(app: Packhorse, *, threads: bool = False) -> Any:
    def pay_here(cents: int, currency: str) -> str:
        return f"{cents} {currency}"

    async def pay_there(cents: int, currency: str) -> str:
        return pay_here(cents, currency)

    contract = Contract(worker_id="payer", version="3")
    pay = app.task(name="pay", contract=contract)(pay_here if threads else pay_there)

    @pay.upcast("1", "2")
    def in_cents(payload: dict[str, Any]) -> dict[str, Any]:
        return {"cents": payload["euros"] * 100}

    @pay.upcast("2", "3")
    def with_currency(payload: dict[str, Any]) -> dict[str, Any]:
        return {**payload, "currency": "EUR"}

    return pay


def stored(app: Packhorse, payload: bytes, version: str | None) -> Any:
    options = None if version is None else JobOptions(version=version)
    job = NewJob(new_id(), "pay", payload, options=options)
    app.store.run(app.store.jobs.submit([job]))
    return app.job(job.id)


@pytest.mark.parametrize("threads", [False, True])
def test_jobs_of_older_releases_run_with_the_newest_code(new_app: NewApp, *, threads: bool) -> None:
    old, new = new_app(), new_app()
    first = release_1(old).enqueue(5)
    pay = release_3(new, threads=threads)
    second = stored(new, b'{"cents": 7}', "2")
    unversioned = stored(new, b'{"euros": 2}', None)
    third = pay.enqueue(9, "USD")

    new.run(burst=True)

    jobs = [new.job(each.id) for each in (first, second, unversioned, third)]
    assert [job.result() for job in jobs] == ["500 EUR", "7 EUR", "200 EUR", "9 USD"]


def test_an_old_worker_sets_newer_jobs_aside_and_a_new_one_runs_them(new_app: NewApp) -> None:
    old, new = new_app(), new_app()
    release_1(old)
    job = release_3(new).enqueue(700, "EUR")

    old.run(burst=True)

    info = job.info()
    assert info.status is JobStatus.PENDING
    assert info.error is not None
    assert info.error.code == OTHER_VERSION
    assert (info.attempts, info.failures, info.snoozes, info.releases) == (0, 0, 0, 1)
    [reason] = [each for each in job.explain().reasons if each.code == "parked"]
    assert "version '3'" in reason.text
    assert "pay is at '1'" in reason.text
    job.retry()  # now, instead of in a second
    new.run(burst=True)
    assert job.result() == "700 EUR"


@pytest.mark.parametrize("payload", [b'{"euros": "many"}', b'{"pounds": 3}'])
def test_an_older_payload_that_cannot_be_moved_waits_for_better_code(
    new_app: NewApp, payload: bytes
) -> None:
    app = new_app()
    release_3(app)
    job = stored(app, payload, "1")

    app.run(burst=True)

    assert (job.status(), job.explain().codes[0]) == (JobStatus.PENDING, "parked")


@pytest.mark.req("S0-4")
@pytest.mark.parametrize("version", ["3", "3.0"])
def test_an_invalid_payload_of_the_same_version_is_dead_at_once(
    new_app: NewApp, version: str
) -> None:
    app = new_app()
    release_3(app)
    job, broken = stored(app, b'{"cents": "few"}', version), stored(app, b"[1", "1")

    app.run(burst=True)

    assert (job.status(), job.info().dead_reason) == (JobStatus.DEAD, "invalid_request")
    assert (broken.status(), broken.info().dead_reason) == (JobStatus.DEAD, "undecodable")


def test_an_older_version_without_upcasters_runs_if_it_fits(new_app: NewApp) -> None:
    app = new_app()

    @app.task(contract=Contract(version="2"))
    def pay(euros: int, note: str = "") -> int:
        return euros

    fits, differs = stored(app, b'{"euros": 5}', "1"), stored(app, b'{"pounds": 5}', "1")

    app.run(burst=True)

    assert fits.result() == 5
    assert differs.explain().codes[0] == "parked"


def test_a_plain_task_carries_no_version(new_app: NewApp) -> None:
    app = new_app()

    @app.task
    def plain(number: int) -> int:
        return number

    job = plain.enqueue(1)
    found = app.store.run(app.store.inspection.job(job.id))

    assert found is not None
    assert found.options is None


def test_a_request_of_an_older_version_is_moved_forward_when_it_comes(new_app: NewApp) -> None:
    app = new_app()
    release_3(app)

    job = app.submit({"worker_id": "payer", "version": "1", "inputs": {"euros": 3}})
    with pytest.raises(ContractError, match="cannot take a request of version '4'"):
        app.submit({"worker_id": "payer", "version": "4", "inputs": {"euros": 3}})

    app.run(burst=True)
    assert job.result() == "300 EUR"


def test_a_runtime_of_its_own_gets_payloads_of_now_and_no_newer_ones(new_app: NewApp) -> None:
    app = new_app()
    release_3(app)
    old, newer = stored(app, b'{"euros": 5}', "1"), stored(app, b'{"wei": 5}', "4")

    async def fetch_all() -> list[Any]:
        found = []
        async with app.consumer() as consumer:
            while (job := await consumer.fetch(timeout=0.2)) is not None:
                found.append(job.payload)
                await consumer.mark_complete(job)
        return found

    began_us = SystemClock().now_us()
    assert asyncio.run(fetch_all()) == [{"cents": 500, "currency": "EUR"}]
    assert (old.status(), newer.status()) == (JobStatus.COMPLETED, JobStatus.PENDING)
    assert newer.explain().codes[0] == "parked"
    record = app.store.run(app.store.inspection.job(newer.id))
    assert record is not None
    assert record.error is not None
    assert (
        abs((record.error.since_us or 0) - began_us) < 60 * SECOND_US
    )  # from then on it counts as set aside


def test_the_version_survives_a_retry_and_a_redrive(new_app: NewApp) -> None:
    app = new_app()
    release_3(app)
    job = stored(app, b'{"euros": 5}', "1")
    job.cancel()
    job.retry()

    app.run(burst=True)

    found = app.store.run(app.store.inspection.job(job.id))
    assert found is not None
    assert found.options is not None
    assert (job.result(), found.options.version) == ("500 EUR", "1")
    assert msgspec.json.decode(found.payload) == {"euros": 5}
