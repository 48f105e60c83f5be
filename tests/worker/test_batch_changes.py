# SPDX-License-Identifier: MIT
"""Batches on every store: stopped while they are filled, with the keys and limits of their task."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from packhorse import Context, Contract, ContractError, RetryPolicy
from packhorse.core.batches import BATCH_KEPT_US, batch_group, member_id
from packhorse.core.job import JobRecord
from packhorse.group_errors import BatchConflict, BatchNotFound
from packhorse.testing import TestApp
from tests.worker.schedule_support import every_store

__all__ = ["every_store"]  # pytest finds the fixture here


def _member(app: TestApp, batch_id: str, tenant: str = "", number: int = 0) -> JobRecord:
    found = app.store.run(
        app.store.inspection.job(member_id(batch_group(batch_id, tenant), number))
    )
    assert found is not None
    return found


# ------------------------------------------------------------------------- stopped by an error


def test_a_batch_that_an_error_stops_while_it_is_filled_is_filled_and_ends(
    packhorse_app: TestApp,
) -> None:
    called: list[str] = []

    @packhorse_app.task(retry=RetryPolicy(max_retries=0))
    def check(number: int) -> int:
        if number == 0:
            raise ValueError("not zero")
        return number

    @packhorse_app.task
    def tell(what: str) -> None:
        called.append(what)

    def items() -> Iterator[int]:
        for number in range(1_200):
            if number == 700:
                packhorse_app.run_jobs()
            yield number

    batch = packhorse_app.batch(
        *(check, items()), batch_size=10, stop_on_error=True, on_complete=tell.call("complete")
    )
    packhorse_app.run_jobs()

    progress = batch.progress()
    assert (progress.status, progress.total, progress.failed) == ("failed", 1_200, 1)
    assert called == ["complete"]
    assert batch.retry_failed() > 0
    with pytest.raises(BatchConflict, match="filled"):
        batch.resume(range(1_200))


def test_a_batch_that_an_error_stopped_is_resumed_when_its_producer_has_died(
    packhorse_app: TestApp,
) -> None:
    @packhorse_app.task(retry=RetryPolicy(max_retries=0))
    def check(number: int) -> int:
        if number == 0:
            raise ValueError("not zero")
        return number

    def dying() -> Iterator[int]:
        yield from range(50)
        packhorse_app.run_jobs()
        raise OSError("the network is gone")

    with pytest.raises(OSError, match="gone"):
        packhorse_app.batch(check, dying(), batch_size=1, stop_on_error=True, id="import")
    batch = packhorse_app.batches.get("import")
    assert batch.document().stopped == "error"
    batch.resume(range(60))
    packhorse_app.run_jobs()

    assert (batch.progress().status, batch.progress().total) == ("failed", 60)


def test_a_cancelled_batch_is_not_filled_any_more(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    def check(number: int) -> int:
        return number

    def items() -> Iterator[int]:
        for number in range(1_200):
            if number == 700:
                packhorse_app.batches.get("import").cancel()
            yield number

    with pytest.raises(BatchConflict, match="cancelled"):
        packhorse_app.batch(check, items(), batch_size=10, id="import")


# ---------------------------------------------------------------------- contracts and keys


def test_the_members_of_a_batch_keep_the_contract_of_their_task(packhorse_app: TestApp) -> None:
    contract = Contract(rate_limit="10/60s", timeout="10s", max_attempts=2)

    @packhorse_app.task(contract=contract)
    def ask(number: int) -> int:
        return number

    acme = ask.using(tenant="acme")
    acme.map([1], id="single")
    packhorse_app.tenant("acme").batch(acme, [1], id="chunked")

    assert _member(packhorse_app, "single", "acme").rate_key == "acme"
    assert _member(packhorse_app, "chunked", "acme").rate_key == "acme"
    for options in ({"timeout": "1h"}, {"rate_key": "mine"}):
        with pytest.raises(ContractError):
            ask.using(**options).map([1])  # type: ignore[arg-type]
        with pytest.raises(ContractError):
            packhorse_app.batch(ask.using(**options), [1])  # type: ignore[arg-type]


def test_keys_that_a_caller_gives_to_a_map_are_before_those_of_its_task(
    packhorse_app: TestApp,
) -> None:
    @packhorse_app.task(concurrency_key="site", rate_key="site", concurrency=1, rate_limit="9/s")
    def crawl(site: str) -> str:
        return site

    crawl.using(concurrency_key="mine").map(["a"], id="given")
    crawl.map(["a"], id="taken")

    given, taken = (_member(packhorse_app, name) for name in ("given", "taken"))
    assert (given.concurrency_key, given.rate_key) == ("mine", "a")
    assert (taken.concurrency_key, taken.rate_key) == ("a", "a")


def test_members_that_a_member_adds_have_the_keys_of_their_task(packhorse_app: TestApp) -> None:
    @packhorse_app.task(concurrency_key="site", rate_key="site", concurrency=1, rate_limit="9/s")
    def crawl(ctx: Context, site: str) -> str:
        if site == "a":
            ctx.batch.add(["b"])
        return site

    crawl.map(["a"], id="walk")
    packhorse_app.run_jobs()

    added = _member(packhorse_app, "walk", number=1)
    assert (added.concurrency_key, added.rate_key) == ("b", "b")


# ---------------------------------------------------------------------------- ids and their tenants


def test_the_id_of_a_batch_is_free_again_once_the_batch_is_gone(packhorse_app: TestApp) -> None:
    @packhorse_app.task(retry=RetryPolicy(max_retries=0))
    def check(number: int) -> int:
        if number == 0 and not mended:
            raise ValueError("not zero")
        return number

    mended: list[bool] = []
    acme = packhorse_app.tenant("acme")
    first = acme.batch(check, [0, 1], id="nightly")
    packhorse_app.run_jobs()
    packhorse_app.clock.advance(BATCH_KEPT_US // 2_000_000)
    mended.append(True)
    first.retry_failed()
    packhorse_app.run_jobs()
    packhorse_app.clock.advance(BATCH_KEPT_US // 1_500_000)
    kept = packhorse_app.batches.get("nightly").document()
    packhorse_app.clock.advance(BATCH_KEPT_US // 1_500_000)

    assert (kept.job.tenant, kept.status) == ("acme", "completed")
    with pytest.raises(BatchNotFound):
        packhorse_app.batches.get("nightly")
    assert packhorse_app.batch(check, [], id="nightly").progress().status == "completed"
    packhorse_app.clock.advance(BATCH_KEPT_US // 900_000)
    packhorse_app.store.run(packhorse_app.store.upkeep.prune(limit=100))
    assert acme.batch(check, [3], id="nightly").progress().total == 1
    assert packhorse_app.batches.get("nightly").tenant == "acme"


def test_no_two_batches_of_a_store_have_one_id(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    def check(number: int) -> int:
        return number

    packhorse_app.batch(check, [1], id="plain")
    packhorse_app.tenant("acme").batch(check, [1, 2], id="owned")

    with pytest.raises(BatchConflict, match="there already"):
        packhorse_app.tenant("acme").batch(check, [1, 2], id="plain")
    with pytest.raises(BatchConflict, match="there already"):
        packhorse_app.batch(check, [1], id="owned")
    assert packhorse_app.batches.get("plain").tenant == ""
    assert packhorse_app.batches.get("owned").tenant == "acme"
