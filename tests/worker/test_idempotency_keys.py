# SPDX-License-Identifier: MIT
"""`ctx.idempotency_key`: what an outside system is given, so that it does nothing twice."""

from __future__ import annotations

import pytest

from packhorse import Context, Packhorse, RetryPolicy

KEYS: list[str] = []


@pytest.fixture
def app() -> Packhorse:
    app = Packhorse("memory://")
    KEYS.clear()

    @app.task(retry=RetryPolicy(max_retries=1, initial_delay=0.001, max_delay=0.001))
    async def charge(ctx: Context, amount: int) -> None:
        KEYS.extend((ctx.idempotency_key("charge"), ctx.idempotency_key("mail")))
        if ctx.job.attempt == 1:
            raise ConnectionError("was it charged?")

    @app.task
    async def other(ctx: Context, amount: int) -> None:
        KEYS.append(ctx.idempotency_key("charge"))

    return app


@pytest.mark.req("S3-24", "X-11")
async def test_a_step_has_the_same_key_on_every_attempt_and_no_other_step_or_job_has_it(
    app: Packhorse,
) -> None:
    charge = app.tasks["charge"]
    # A trace may be shared by many jobs; their keys are not.
    await charge.using(trace_id="same").aenqueue(1)
    await app.arun(burst=True)
    await charge.using(trace_id="same").aenqueue(1)
    await app.arun(burst=True)

    first, second = KEYS[:4], KEYS[4:]
    assert first[:2] == first[2:]
    assert second[:2] == second[2:]
    assert len({*first, *second}) == 4


@pytest.mark.req("X-11")
async def test_a_key_given_at_submit_is_the_handlers_and_outlives_its_job(app: Packhorse) -> None:
    charge = app.tasks["charge"]
    for tenant in ("", "", "acme"):
        job = await charge.using(
            idempotency_key="order-17", idempotency_window="1ms", tenant=tenant
        ).aenqueue(1)
        await app.arun(burst=True)
        assert job.deduplicated is False
    await app.tasks["other"].using(idempotency_key="order-17").aenqueue(1)
    await app.arun(burst=True)

    first, again, of_another, *of_another_task = KEYS[:4], KEYS[4:8], KEYS[8:12], KEYS[12]
    assert first == again
    assert {*of_another, *of_another_task}.isdisjoint(first)


def test_a_direct_call_has_keys_of_its_own() -> None:
    one, two = Context.detached("charge"), Context.detached("charge")

    assert one.idempotency_key("a") == one.idempotency_key("a")
    assert one.idempotency_key("a") != two.idempotency_key("a")
