# SPDX-License-Identifier: MIT
"""Tasks in several modules: routers that know no app, and modules an app imports when it needs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse import ConfigError, Context, JobStatus, Packhorse, Router, ShapeError, UsageError
from packhorse.stores.memory import MemoryStore
from tests.unit.app_support import memory_app

Write = Callable[[str, str], None]


@pytest.fixture
def app() -> Iterator[Packhorse]:
    made = memory_app()
    yield made
    made.close()


def mail_router() -> tuple[Router, Any]:
    router = Router(prefix="mail.")

    @router.task(queue="outgoing")
    def send(ctx: Context, to: str) -> str:
        return f"{ctx.job.task} to {to}"

    return router, send


# --------------------------------------------------------------------------------------- routers


def test_a_routers_task_is_named_with_its_prefix_and_runs_in_the_app_that_includes_it(
    app: Packhorse,
) -> None:
    router, send = mail_router()
    app.include(router)

    job = send.enqueue("a")
    app.run(burst=True)

    assert send.name == "mail.send"
    assert (job.info().task, job.info().queue, job.result()) == (
        *("mail.send", "outgoing"),
        "mail.send to a",
    )
    assert app.known_queues == ("outgoing", "alerts", "default", "batch")


def test_a_task_declared_after_the_router_was_included_is_taken_in_too(app: Packhorse) -> None:
    router = Router(prefix="late.")
    app.include(router)

    @router.task(name="add")
    async def plus(a: int) -> int:
        return a + 1

    job = plus.using(priority="high").enqueue(1)
    app.run(burst=True)
    assert (plus.name, job.result()) == ("late.add", 2)


def test_a_task_whose_router_no_app_includes_cannot_be_submitted() -> None:
    _, send = mail_router()
    urgent = send.using(priority="high")

    submits: tuple[Callable[[], Any], ...] = (
        lambda: send.enqueue("a"),
        lambda: urgent.enqueue("a"),
        lambda: send.enqueue_many([{"to": "a"}]),
        lambda: asyncio.run(send.aenqueue("a")),
        lambda: asyncio.run(urgent.aenqueue("a")),
    )
    for submit in submits:
        with pytest.raises(UsageError, match=r"prefix='mail\.'.*no app includes.*app\.include"):
            submit()
    assert send.call("a").task == "mail.send"  # it is still a task


def test_what_was_made_before_the_router_was_included_works_afterwards(app: Packhorse) -> None:
    router, send = mail_router()
    urgent = send.using(priority="high")

    app.include(router)

    assert urgent.enqueue("a").info().priority == "high"


def test_a_router_of_two_apps_runs_in_both_and_is_submitted_through_one_of_them() -> None:
    router, send = mail_router()
    first, second = memory_app(), memory_app()
    first.include(router)
    second.include(router)

    with pytest.raises(UsageError, match=r"several apps include") as raised:
        send.enqueue("a")
    jobs = [app.tasks["mail.send"].enqueue("a") for app in (first, second)]
    for app in (first, second):
        app.run(burst=True)

    assert str(raised.value).count(__file__) == 2
    assert [job.result() for job in jobs] == ["mail.send to a"] * 2


def test_a_router_included_twice_is_included_once(app: Packhorse) -> None:
    router, send = mail_router()

    app.include(router, router)
    app.include(router)

    assert list(app.tasks) == ["mail.send"]
    assert send.enqueue("a").status() is JobStatus.QUEUED


def test_two_tasks_of_one_name_are_refused_wherever_they_come_from(app: Packhorse) -> None:
    router, _ = mail_router()
    other, _ = mail_router()
    app.include(router)

    with pytest.raises(
        ConfigError, match=r"'mail\.send' is declared twice: at \S+, a line that ran twice"
    ):
        app.include(other)
    with pytest.raises(ConfigError, match="declared twice"):
        router.task(name="send")(lambda: None)


@pytest.mark.parametrize("prefix", ["Mail.", "mail..", ".", "1.", "mail-", "mail\n."])
def test_a_prefix_that_makes_no_name_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot name a task.*dots between"):
        Router(prefix=prefix).task(name="send")(lambda: None)


def test_aliases_of_a_routers_task_are_whole_names(app: Packhorse) -> None:
    router = Router(prefix="mail.")

    @router.task(aliases=["send_mail"])
    def send() -> None: ...

    app.include(router)
    assert app.registry.names == ("mail.send", "send_mail")


# ---------------------------------------------------------------------------------- dotted names


def test_dots_join_the_parts_of_a_name(app: Packhorse) -> None:
    app.task(name="shop.mail.send_2", aliases=["old.name"])(lambda: None)

    assert app.registry.names == ("shop.mail.send_2", "old.name")


@pytest.mark.parametrize("name", ["mail.", ".send", "mail..send", "mail.2", "mail.Send", "a.b\n"])
def test_a_name_is_whole_between_dots(app: Packhorse, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot name a task"):
        app.task(name=name)(lambda: None)


def test_the_wire_knows_a_dotted_task_by_an_alias(app: Packhorse) -> None:
    app.task(name="mail.send", aliases=["mail_send"])(lambda: None)

    with pytest.raises(ShapeError, match=r"\$\.type"):
        app.submit({"id": "a", "type": "mail.send", "payload": {}})
    job = app.submit({"id": "b", "type": "mail_send", "payload": {}})

    assert job.info().task == "mail.send"


# --------------------------------------------------------------------------------------- modules


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes modules that can be imported, and are forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def imported(name: str) -> Any:
    return __import__(name, fromlist=["*"])


def test_modules_may_import_the_app_that_includes_them(write: Write) -> None:
    write(
        "ring/app.py",
        "from packhorse import Packhorse\n"
        "app = Packhorse('memory://', include=['ring.mail', 'ring.pay'])\n"
        "app.queue('mail')\n"
        "LATE = 'x'\n",
    )
    write(
        "ring/mail.py",
        "from ring.app import LATE, app\nfrom ring.pay import pay\n"
        "@app.task(queue='letters')\ndef send() -> str: return LATE\n",
    )
    write("ring/pay.py", "from ring.app import app\n@app.task\ndef pay() -> None: ...\n")

    app = imported("ring.app").app
    assert "ring.mail" not in sys.modules
    known = app.known_queues

    assert known == ("mail", "default", "letters", "batch")
    assert set(app.tasks) == {"send", "pay"}
    job = imported("ring.mail").send.enqueue()
    app.run(burst=True)
    assert job.result() == "x"
    app.close()


def test_the_module_of_a_task_may_be_imported_first(write: Write) -> None:
    write("first/app.py", "from packhorse import Packhorse\napp = Packhorse('memory://')\n")
    write("first/mail.py", "from first.app import app\n@app.task\ndef send() -> None: ...\n")
    send = imported("first.mail").send
    app = imported("first.app").app

    app.include("first.mail")

    assert app.tasks == {"send": send}
    app.close()


@pytest.mark.parametrize("look_up", ["tasks", "run", "submit", "consumer", "known_queues"])
def test_a_look_for_a_task_has_the_modules_imported(write: Write, look_up: str) -> None:
    write(
        "lib.py",
        "from packhorse import Router\nmail = Router(prefix='mail.')\n"
        "@mail.task(queue='letters', aliases=['wired'])\ndef send() -> int: return 7\n",
    )
    app = Packhorse(store=MemoryStore(), include=["lib"])
    answers: dict[str, Callable[[], Any]] = {
        "tasks": lambda: list(app.tasks),
        "run": lambda: app.run(["default"], burst=True),
        "submit": lambda: app.submit({"id": "a", "type": "wired", "payload": {}}),
        "consumer": app.consumer,
        "known_queues": lambda: app.known_queues,
    }

    answers[look_up]()

    assert "lib" in sys.modules
    names = [task.name for task in app.registry.tasks]
    assert [name for name in names if not name.startswith("packhorse.")] == ["mail.send"]
    app.close()


def test_results_are_read_as_an_included_module_declares_them(write: Write) -> None:
    write(
        "typed.py",
        "from packhorse import Router\nfrom datetime import date\nmail = Router()\n"
        "@mail.task\ndef day() -> date: return date(2026, 1, 2)\n",
    )
    store = MemoryStore()
    producer = Packhorse(store=store, include=["typed"])
    job = producer.job(producer.tasks["day"].enqueue().id)
    producer.run(burst=True)

    assert Packhorse(store=store, include=["typed"]).job(job.id).result() == job.result()
    assert str(job.result()) == "2026-01-02"


def test_a_module_that_is_not_there_is_named_with_the_place_that_includes_it(write: Write) -> None:
    write("deep/__init__.py", "")
    write("deep/bad.py", "import deep.gone\n")
    app = Packhorse("memory://", include=["no.such.module"])
    broken = Packhorse("memory://", include=["deep.bad"])

    with pytest.raises(ConfigError, match=rf"{__file__}:\d+ includes 'no\.such\.module'.*'no'"):
        app.run(burst=True)
    for _ in range(2):  # it is tried again, not taken for imported
        with pytest.raises(ModuleNotFoundError, match=r"deep\.gone"):
            broken.run(burst=True)


@pytest.mark.parametrize("given", ["shop.mail:tasks", "shop/mail.py", "", 3, None])
def test_what_is_neither_a_module_nor_a_router_is_refused(app: Packhorse, given: Any) -> None:
    with pytest.raises(ConfigError, match=r"include: .* neither a module nor a router"):
        app.include(given)
    with pytest.raises(ConfigError, match="neither a module nor a router"):
        Packhorse("memory://", include=[given])


def test_one_module_may_be_given_without_a_list() -> None:
    assert Packhorse("memory://", include="shop.mail").modules == ("shop.mail",)
