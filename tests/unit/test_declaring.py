# SPDX-License-Identifier: MIT
"""What queues and tasks are declared with: read, refused, told to the store, and in conflict."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from packhorse import ConfigError, Packhorse, TenantRequired, Unique
from packhorse.core.job import RateRule
from packhorse.core.policies.autoscale import ScaleRule
from packhorse.events import QueueConflict, TaskConflict
from packhorse.stores.memory import MemoryStore
from packhorse.stores.requests import QueueSettings, TaskSettings
from tests.unit.app_support import STORES, app_on, memory_app


@pytest.fixture(params=STORES)
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Packhorse]:
    made = app_on(request.param, tmp_path)
    yield made
    made.close()


def settings_of(app: Packhorse, queue: str) -> QueueSettings:
    states = app.store.run(app.store.queues.queues())
    return next(state.settings for state in states if state.settings.name == queue)


def rules_of(app: Packhorse) -> tuple[TaskSettings, ...]:
    return app.store.run(app.store.queues.tasks())


# ------------------------------------------------------------------------------------ queues


def test_every_option_of_a_queue_reaches_the_store(app: Packhorse) -> None:
    app.queue(
        "mail",
        concurrency=5,
        rate_limit=(100, "60s"),
        tenant_rate_limit=(10, 60),
        max_depth=10_000,
        on_full="wait",
        wait_timeout="5s",
        soft_depth=8_000,
        fair=True,
        weights={"acme": 2},
        on_dead="hold",
        dead_letter="mail_dead",
        priority=3,
        autoscale={"max_workers": 4},
    )
    app.queue("slow", ageing="5m")
    app.task(name="work")(lambda: None)

    app.tasks["work"].enqueue()

    mail, slow = settings_of(app, "mail"), settings_of(app, "slow")
    assert (mail.concurrency, mail.rate) == (5, RateRule(100, 60_000_000))
    assert mail.tenant_rate == RateRule(10, 60_000_000)
    assert (mail.max_depth, mail.on_full, mail.soft_depth) == (10_000, "wait", 8_000)
    assert (mail.fair, mail.weights, mail.on_dead) == (True, {"acme": 2}, "hold")
    assert (mail.priority, mail.dead_letter) == (3, "mail_dead")
    assert (slow.ageing_us, slow.fair) == (300_000_000, False)
    assert app.scales == {"mail": ScaleRule(enabled=True, max_workers=4)}


def test_tenants_share_a_declared_queue_unless_its_jobs_age() -> None:
    app = memory_app()
    app.queue("plain")
    app.queue("unfair", fair=False)
    app.queue("aged", ageing=60)

    asyncio.run(app._connection.adeclare())

    fair = [settings_of(app, name).fair for name in ("plain", "unfair", "aged")]
    assert fair == [True, False, False]


@pytest.mark.req("S0-36")
@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("10/min", RateRule(10, 60_000_000)),
        ("10/m", RateRule(10, 60_000_000)),
        ("100/60s", RateRule(100, 60_000_000)),
        (" 5 / Second ", RateRule(5, 1_000_000)),
        ("7/hour", RateRule(7, 3_600_000_000)),
        ("7/1h30m", RateRule(7, 5_400_000_000)),
        ("1/day", RateRule(1, 86_400_000_000)),
    ],
)
def test_a_rate_is_taken_as_people_write_it_wherever_one_can_be_given(
    app: Packhorse, text: str, rule: RateRule
) -> None:
    app.queue("mail", rate_limit=text, tenant_rate_limit=text)
    app.task(name="call_api", rate_limit=text)(lambda: None)
    app.set_limits("sms", rate_limit=text, tenant_rate_limit=text)

    app.tasks["call_api"].enqueue()

    for settings in (settings_of(app, "mail"), settings_of(app, "sms")):
        assert (settings.rate, settings.tenant_rate) == (rule, rule)
    assert rules_of(app) == (TaskSettings("call_api", rate=rule),)


@pytest.mark.req("S0-36")
@pytest.mark.parametrize(
    "text", ["per-tenant (example: 10/min)", "per-tenant 10/min", "Per tenant: 10/60s"]
)
def test_the_text_of_a_contract_limits_each_tenant(app: Packhorse, text: str) -> None:
    app.queue("mail", rate_limit=text)
    app.queue("sms", tenant_rate_limit=text)

    app.task(name="work")(lambda: None)
    app.tasks["work"].enqueue()

    for name in ("mail", "sms"):
        settings = settings_of(app, name)
        assert (settings.rate, settings.tenant_rate) == (None, RateRule(10, 60_000_000))
    with pytest.raises(ConfigError, match="give the limit of each tenant once"):
        app.queue("both", rate_limit=text, tenant_rate_limit="5/min")
    with pytest.raises(ConfigError, match="give it to the task's queue"):
        app.task(name="call_api", rate_limit=text)(lambda: None)


@pytest.mark.parametrize("text", ["", "10", "10/", "/min", "10/fortnight", "10/min)", "1.5/min"])
def test_a_text_that_is_no_rate_is_refused(app: Packhorse, text: str) -> None:
    with pytest.raises(ConfigError, match="rate_limit"):
        app.queue("mail", rate_limit=text)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"concurrency": 0}, "queue 'mail': concurrency is 0; give 1 or more"),
        ({"concurrency": True}, "queue 'mail': concurrency is True"),
        ({"rate_limit": 100}, "queue 'mail': rate_limit is 100; give how many and the window"),
        ({"rate_limit": (0, "60s")}, "queue 'mail': rate_limit lets 0 start; give 1 to"),
        ({"rate_limit": (-1, "60s")}, "rate_limit lets -1 start"),
        ({"rate_limit": (5, 0)}, "rate_limit: its window is 0; give a span longer than zero"),
        ({"rate_limit": (5, "soon")}, "rate_limit: its window is 'soon'"),
        ({"tenant_rate_limit": (0, 1)}, "tenant_rate_limit lets 0 start"),
        ({"max_depth": 0}, "queue 'mail': max_depth is 0; give 1 or more"),
        ({"max_depth": 10**30}, "queue 'mail': max_depth is 1000000000"),
        ({"max_depth": 5, "soft_depth": 6}, "soft_depth is 6, above max_depth, which is 5"),
        ({"on_full": "drop"}, "on_full is 'drop' and there is no max_depth"),
        ({"max_depth": 5, "on_full": "explode"}, "give 'reject', 'wait' or 'drop'"),
        ({"wait_timeout": 5}, "wait_timeout is set and on_full is 'reject'"),
        ({"fair": "yes"}, "queue 'mail': fair is 'yes'; give True or False"),
        ({"fair": False, "weights": {"a": 1}}, "weights are set and fair is off"),
        ({"weights": {"a": 0}}, "weights gives tenant 'a' 0"),
        ({"weights": ["a"]}, "weights is ['a']; give tenants and shares"),
        ({"ageing": "5m", "fair": True}, "ageing and fair are both on"),
        ({"ageing": 0}, "queue 'mail': ageing is 0; give a span longer than zero"),
        ({"on_dead": "bury"}, "on_dead is 'bury'; give 'release'"),
        ({"autoscale": 4}, "autoscale is 4; give its settings by name"),
        ({"autoscale": {"max": 4}}, "queue 'mail': autoscale: there is no option 'max'"),
        ({"autoscale": {"enabled": 1}}, "autoscale: enabled is 1; give True or False"),
        ({"autoscale": {"min_workers": 3, "max_workers": 2}}, "min_workers is 3, above max"),
        ({"autoscale": {"scale_up": 10}}, "scale_down is 10, not below scale_up, which is 10"),
        ({"concurency": 5}, "there is no option 'concurency'; did you mean 'concurrency'?"),
        ({"ratelimit": (1, 1)}, "did you mean 'rate_limit'?"),
    ],
)
@pytest.mark.req("S1-50")
def test_a_queue_that_could_not_work_is_refused_where_it_is_declared(
    options: Any, words: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        memory_app().queue("mail", **options)

    assert words in str(raised.value)
    assert "queue 'mail'" in str(raised.value)


def test_a_conflicting_declaration_is_one_warning_that_names_both_values() -> None:
    store = MemoryStore()
    old, new = Packhorse(store=store), Packhorse(store=store)
    heard: list[QueueConflict] = []
    new.on("queue.conflict")(heard.append)
    old.queue("mail", concurrency=5, priority=1)
    new.queue("mail", concurrency=9, priority=1)
    for app in (old, new):
        app.task(name="work")(lambda: None)

    for app in (old, new, new):
        app.tasks["work"].enqueue()

    (conflict,) = heard
    assert (conflict.queue, conflict.before, conflict.now) == (
        "mail",
        '{"concurrency":5}',
        '{"concurrency":9}',
    )
    assert settings_of(new, "mail").concurrency == 9


# ------------------------------------------------------------------------------------- tasks


def test_the_limits_of_a_task_reach_the_store_before_its_first_job(app: Packhorse) -> None:
    app.task(name="call_api", concurrency=2, rate_limit=(10, "1s"), aliases=["call"])(lambda: None)
    app.task(name="free")(lambda: None)

    app.tasks["free"].enqueue()

    rate = RateRule(10, 1_000_000)
    assert rules_of(app) == (TaskSettings("call", 2, rate), TaskSettings("call_api", 2, rate))


def test_a_task_declared_later_is_told_too(app: Packhorse) -> None:
    app.task(name="free")(lambda: None)
    app.tasks["free"].enqueue()
    app.task(name="late", concurrency=1)(lambda: None)

    asyncio.run(app.tasks["free"].aenqueue())

    assert rules_of(app) == (TaskSettings("late", 1),)


def test_a_worker_takes_back_a_limit_that_is_no_longer_declared(tmp_path: Path) -> None:
    before = app_on("sqlite", tmp_path)
    before.task(name="work", concurrency=1)(lambda: None)
    before.tasks["work"].enqueue()
    before.close()
    after = app_on("sqlite", tmp_path)
    after.task(name="work")(lambda: None)
    heard: list[TaskConflict] = []
    after.on("task.conflict")(heard.append)

    after.tasks["work"].enqueue()
    assert rules_of(after) == (TaskSettings("work", 1),)
    after.run(burst=True)

    assert rules_of(after) == ()
    assert [(event.task, event.before, event.now) for event in heard] == [
        ("work", '{"concurrency":1}', '{"concurrency":null}')
    ]
    after.close()


def work(to: str, times: int = 1) -> None: ...


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"concurrency": 0}, "task work(): concurrency is 0; give 1 or more"),
        ({"concurrency": 2**31}, "task work(): concurrency is 2147483648"),
        ({"rate_limit": (1,)}, "task work(): rate_limit is (1,)"),
        ({"rate_limit": (0, 1)}, "task work(): rate_limit lets 0 start"),
        ({"concurrency_key": "to"}, "concurrency_key is set and concurrency is not"),
        (
            {"concurrency": 1, "concurrency_key": "tto"},
            "takes argument 'tto', which the task does not have; did you mean 'to'?",
        ),
        ({"rate_key": "zzz"}, "rate_key takes argument 'zzz'"),
        ({"rate_key": lambda zzz: zzz}, "rate_key takes argument 'zzz'"),
        ({"rate_key": 3}, "rate_key is 3; give the name of an argument, or a function"),
        ({"rate_key": max}, "whose parameters are unknown; give a plain function"),
        ({"unique": True}, "task work(): unique is True; give a Unique(...)"),
        ({"unique": Unique("zzz")}, "task work(): unique: key takes argument 'zzz'"),
        ({"unique": Unique(("to", "tmes"))}, "did you mean 'times'?"),
        ({"idempotency_window": 0}, "idempotency_window is 0; give a span longer than zero"),
        (
            {"idempotency_window": "2h", "result_ttl": "1h"},
            "the idempotency window is 2h, and results are kept for 1h",
        ),
    ],
)
def test_a_task_that_could_not_work_is_refused_where_it_is_declared(
    options: Any, words: str
) -> None:
    app = memory_app()

    with pytest.raises(ConfigError) as raised:
        app.task(**options)(work)

    assert words in str(raised.value)
    assert app.registry.names == ()


@pytest.mark.parametrize("queue_first", [True, False])
def test_an_idempotency_window_beyond_the_queues_results_is_refused_when_both_are_known(
    *, queue_first: bool
) -> None:
    app = memory_app()

    def declare_queue() -> None:
        app.queue("mail", retention={"results": "1h"})

    def declare_task() -> None:
        app.task(queue="mail", idempotency_window="2h")(work)

    first, second = (declare_queue, declare_task) if queue_first else (declare_task, declare_queue)
    first()

    with pytest.raises(ConfigError, match="results are kept for 1h"):
        second()


def test_an_idempotency_window_beyond_the_default_is_refused_before_anything_is_stored() -> None:
    app = memory_app()
    app.task(idempotency_window="25h")(work)

    with pytest.raises(ConfigError, match="results are kept for 1d"):
        app.tasks["work"].enqueue("a")
    with pytest.raises(ConfigError, match="results are kept for 1d"):
        app.run(burst=True)

    assert app.depth("default") == 0


# ----------------------------------------------------------------------------------- tenants


@pytest.mark.req("S3-45")
@pytest.mark.parametrize("whole", [False, True], ids=["queue", "app"])
async def test_a_job_without_a_tenant_is_refused_where_one_is_demanded(*, whole: bool) -> None:
    app = Packhorse("memory://", require_tenant=whole)
    app.queue("mail", require_tenant=not whole)
    plain = app.task(name="plain", queue="mail")(lambda: None)
    calls = [plain.call().using(tenant="acme"), plain.call()]
    wire = {"id": "w", "type": "plain", "payload": {}, "queue": "mail"}

    for submit in (
        *(plain.aenqueue, plain.using(priority="high").aenqueue),
        *(partial(app.aenqueue_many, calls), partial(app.aenqueue_many, [plain.call()] * 3)),
        partial(app.asubmit, wire),
    ):
        with pytest.raises(TenantRequired) as refused:
            await submit()
        assert (refused.value.code, refused.value.queue) == ("TENANT_REQUIRED", "mail")
    with pytest.raises(TenantRequired):
        await asyncio.to_thread(plain.enqueue)

    assert app.depth("mail") == 0
    await plain.using(tenant="acme").aenqueue()
    (theirs,) = await app.tenant("acme").aenqueue_many([plain.call()])
    assert theirs.info().tenant == "acme"
    app.close()


async def test_other_queues_go_on_to_take_jobs_without_a_tenant() -> None:
    app = Packhorse("memory://")
    app.queue("mail", require_tenant=True)
    app.task(name="work")(lambda: None)

    await app.tasks["work"].aenqueue()

    assert app.depth("default") == 1
    app.close()


def test_a_class_method_is_refused_when_its_class_is_made() -> None:
    app = memory_app()

    with pytest.raises(ConfigError, match=r"Shop\.pay\(\) is a class method, .* 'cls'.*Shop\.pay"):

        class Shop:
            @classmethod
            @app.task
            def pay(cls, number: int) -> int:
                return number


def test_a_method_of_a_class_and_a_parameter_named_cls_are_no_trouble() -> None:
    app = memory_app()

    class Shop:
        @classmethod
        def pay(cls, number: int) -> str:
            return f"{cls.__name__} {number}"

        @staticmethod
        @app.task
        def order(cls: str) -> str:  # noqa: PLW0211 - the case
            return cls

    @app.task
    def seat(cls):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        return cls

    jobs = [app.task(Shop.pay).enqueue(2), Shop.order.enqueue("first"), seat.enqueue("second")]
    app.run(burst=True)

    assert [job.result() for job in jobs] == ["Shop 2", "first", "second"]
