# SPDX-License-Identifier: MIT
"""What one tenant can do to the jobs of another: nothing, by no path, on any store.

The tables name every public verb. A verb that is not there is a failure: say what it does to the
job of another tenant.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import click
import pytest
from click.testing import CliRunner

from packhorse import (
    ConfigError,
    Context,
    JobConflict,
    JobHandle,
    JobNotFound,
    Packhorse,
    RetryPolicy,
    TenantView,
)
from packhorse.cli.main import root
from packhorse.core.job import JobRecord
from packhorse.group_errors import BatchNotFound
from packhorse.runtime.consumer import Consumer
from packhorse.stores.requests import JobFilter

NewApp = Callable[[], Packhorse]

MINE, THEIRS = "mine", "theirs"
#: Verbs of a handle, with what they are called with; each of another tenant's job is not found.
HANDLE: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "status": (),
        "info": (),
        "signal": ("go", 1),
        "progress": (),
        "history": (),
        "logs": (),
        "response": (),
        "wire": (),
        "explain": (),
        "result": (0,),
        "cancel": (),
        "retry": (),
        "artifacts": (),
        "approve": {"by": "Ada"},
        "decline": {"by": "Ada"},
    }
)
#: What a handle is, and asks no store for.
HANDLE_FIELDS: Final = frozenset({"id", "deduplicated", "connection", "tenant"})
#: Verbs of a tenant's view that take the id of a job; those that answer with the tenant's own.
VIEW_BY_ID: Final = frozenset({"job", "explain"})
VIEW_OF_OWN: Final = frozenset(
    {"batch", "batches", "enqueue_many", "publish", "search", "workflow", "workflows"}
)
#: Verbs of a consumer: the first gives jobs, the others are about those that it gave.
CONSUMER: Final = frozenset(
    {
        *("fetch", "mark_complete", "retry_job", "mark_failed", "release", "cancel_requested"),
        *("close", "id", "spend"),
    }
)
#: Commands with --tenant, and what makes them mean all that they may.
COMMANDS: Final = MappingProxyType(
    {
        "jobs list": (),
        "jobs cancel": ("--yes",),
        "jobs purge": ("--yes",),
        "dead list": (),
        "dead redrive": ("--yes",),
        "dead purge": ("--yes",),
        "explain": ("{id}",),
        "queues pause": ("default",),
        "queues resume": ("default",),
        "breakers reset": ("none",),
        "enqueue": (),  # it only submits
        "workflows show": ("of-theirs",),
        "workflows cancel": ("of-theirs",),
        "workflows retry": ("of-theirs",),
        "topics publish": ("no.such.topic", "1"),
        "tokens create": ("mine", "--scope", "viewer"),
    }
)


@pytest.fixture
def app(new_app: NewApp) -> Packhorse:
    app = new_app()
    declare(app)
    return app


def declare(app: Packhorse) -> None:
    @app.task(retry=RetryPolicy(max_retries=0))
    def work(mode: str = "good") -> str:
        if mode == "bad":
            raise ValueError("of another tenant")
        return mode

    @app.task
    def waits(ctx: Context) -> Any:
        ctx.progress(1, 2, "half")
        return ctx.wait_for("go")


def theirs(app: Packhorse) -> dict[str, str]:
    """Jobs of the other tenant in every state that a handle could be asked about."""
    work, waits = (app.tasks[name].using(tenant=THEIRS) for name in ("work", "waits"))
    found = {
        "completed": work.enqueue(),
        "dead": work.enqueue(mode="bad"),
        "suspended": waits.enqueue(),
    }
    app.run(burst=True)
    found["cancelled"] = work.enqueue()
    found["cancelled"].cancel()
    found["waiting"] = work.enqueue()
    return {name: job.id for name, job in found.items()}


def records(app: Packhorse) -> list[JobRecord]:
    page = app.store.run(app.store.inspection.search(JobFilter(tenant=THEIRS), limit=100))
    return sorted(page.jobs, key=lambda record: record.id)


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def twins(names: set[str]) -> set[str]:
    """The names without those of async twins."""
    return {name for name in names if not (name.startswith("a") and name[1:] in names)}


def given(verb: Callable[..., Any], arguments: Any) -> Any:
    return verb(**arguments) if isinstance(arguments, dict) else verb(*arguments)


@pytest.mark.req("S3-39")
def test_every_verb_is_in_a_table() -> None:
    handle = twins(public(JobHandle)) - HANDLE_FIELDS
    consumer = public(Consumer)

    assert handle == set(HANDLE)
    assert twins(public(TenantView)) == VIEW_BY_ID | VIEW_OF_OWN
    assert consumer | {"id"} == CONSUMER
    assert {words for words, command in leaves(root) if takes_tenant(command)} == set(COMMANDS)


@pytest.mark.req("S3-39")
async def test_no_verb_of_a_handle_finds_the_job_of_another(app: Packhorse) -> None:
    jobs = await in_thread(lambda: theirs(app))
    before, view = await in_thread(lambda: records(app)), app.tenant(MINE)

    for name, arguments in HANDLE.items():
        for job_id in (*jobs.values(), "no-such-job"):
            handle = view.job(job_id)
            with pytest.raises(JobNotFound) as refused:
                await in_thread(lambda: given(getattr(handle, name), arguments))  # noqa: B023 - at once
            with pytest.raises(JobNotFound) as also:
                await given(getattr(handle, f"a{name}"), arguments)
            assert str(refused.value) == str(also.value) == str(JobNotFound(job_id))

    assert await in_thread(lambda: records(app)) == before


@pytest.mark.req("S3-39")
async def test_no_verb_of_a_view_finds_the_job_of_another(app: Packhorse) -> None:
    jobs = await in_thread(lambda: theirs(app))
    view, own = app.tenant(MINE), app.tasks["work"].using(tenant=MINE)
    mine = await own.aenqueue()

    for job_id in jobs.values():
        with pytest.raises(JobNotFound):
            await in_thread(lambda: view.explain(job_id))  # noqa: B023 - at once
        with pytest.raises(JobNotFound):
            await view.aexplain(job_id)
    found = await in_thread(lambda: view.search(queue="default", task="work"))
    assert [info.id for info in found] == [mine.id]
    assert await view.asearch() == found
    text = str(await mine.aexplain()) + str(await view.aexplain(mine.id))
    assert not [job_id for job_id in jobs.values() if job_id in text.split(mine.id)[-1]]


@pytest.mark.req("S3-39")
async def test_no_view_finds_the_batch_of_another(app: Packhorse) -> None:
    work, items = app.tasks["work"], [{"mode": "good"}]
    view, other = app.tenant(MINE), app.tenant(THEIRS)
    await other.abatch(work, items, id="theirs")
    await view.abatch(work, items, id="mine")

    for batch_id in ("theirs", "no-such-batch"):
        with pytest.raises(BatchNotFound) as refused:
            await view.batches.aget(batch_id)
        assert str(refused.value) == str(BatchNotFound(batch_id))
    assert [each.batch_id for each in await view.batches.aall()] == ["mine"]


@pytest.mark.req("S3-39")
def test_keys_of_another_tenant_are_not_met(app: Packhorse) -> None:
    work = app.tasks["work"]
    other = work.using(tenant=THEIRS, idempotency_key="one").enqueue()

    (mine,) = app.tenant(MINE).enqueue_many([work.call().using(idempotency_key="one")])

    assert mine.id != other.id
    assert not mine.deduplicated


@pytest.mark.req("S3-39")
def test_an_event_of_a_tenant_is_seen_by_that_tenant_alone(app: Packhorse) -> None:
    topic = app.topic("work.wanted")
    topic.subscribe(app.tasks["work"])
    (theirs_,) = topic.publish({}, tenant=THEIRS, idempotency_key="one")

    (mine,) = app.tenant(MINE).publish("work.wanted", {}, idempotency_key="one")

    assert mine.id != theirs_.id
    assert not mine.deduplicated
    assert mine.info().tenant == MINE
    with pytest.raises(JobNotFound):
        app.tenant(MINE).job(theirs_.id).status()
    for other in (THEIRS, "a", "z"):  # whichever comes first
        with pytest.raises(ConfigError, match=f"is for tenant '{other}' and was asked of the view"):
            app.tenant(MINE).publish("work.wanted", {}, tenant=other)


@pytest.mark.req("S3-39", "S3-45")
async def test_a_consumer_of_a_tenant_is_given_its_jobs_alone(app: Packhorse) -> None:
    jobs = await in_thread(lambda: theirs(app))
    await app.tasks["work"].aenqueue()  # of no tenant
    mine = await app.tasks["work"].using(tenant=MINE).aenqueue()

    async with app.consumer(tenants=[MINE]) as consumer:
        job = await consumer.fetch(timeout=10)
        assert job is not None
        assert job.id == mine.id
        assert await consumer.fetch(timeout=0.1) is None
        for job_id in jobs.values():
            for settling in (
                consumer.mark_complete(job_id),
                consumer.retry_job(job_id, "again"),
                consumer.mark_failed(job_id, "never"),
                consumer.release(job_id),
                consumer.spend(job_id, tokens=1),
            ):
                with pytest.raises(JobConflict, match="no fetch of job"):  # as of any other id
                    await settling
            with pytest.raises(JobConflict, match="no fetch of job"):
                consumer.cancel_requested(job_id)
        assert await consumer.mark_complete(job)

    assert [str(await app.job(job_id).astatus()) for job_id in jobs.values()] == [
        *("completed", "dead", "pending", "cancelled", "queued")
    ]


def leaves(group: click.Group, words: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, f"{words}{name} ")
        else:
            yield f"{words}{name}", command


def takes_tenant(command: click.Command) -> bool:
    return any("--tenant" in option.opts for option in command.params)


@pytest.mark.req("S3-39")
@pytest.mark.parametrize("store_kind", ["sqlite", "postgres", "redis"], indirect=True)
def test_no_command_with_a_tenant_shows_or_touches_the_job_of_another(
    app: Packhorse, store_url: str
) -> None:
    jobs = theirs(app)
    before = records(app)

    for words, options in COMMANDS.items():
        if words == "enqueue":
            continue
        for job_id in jobs.values() if "{id}" in options else [""]:
            given = [option.format(id=job_id) for option in options]
            ran = CliRunner().invoke(
                root, [*words.split(), *given, "--tenant", MINE, "--url", store_url]
            )
            shown = ran.output.replace(job_id, "") if job_id else ran.output
            assert not [each for each in jobs.values() if each in shown or each[-8:] in shown]
            assert ran.exit_code in (0, 7), (words, ran.output)

    assert records(app) == before


async def in_thread(work: Callable[[], Any]) -> Any:
    import asyncio

    assert not inspect.iscoroutinefunction(work)
    return await asyncio.to_thread(work)
