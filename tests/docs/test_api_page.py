# SPDX-License-Identifier: MIT
"""The page about the Python API says what is so: names, parameters, twins, and kinds of URLs."""

from __future__ import annotations

import inspect
import re
from typing import Final

import pytest

from packhorse import Context, JobHandle, Packhorse
from packhorse.client.tenant import TenantView
from packhorse.insights import Insights
from packhorse.runtime.consumer import Consumer
from packhorse.task import Task
from tests.docs.pages import DOCS

PAGE: Final = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
#: The sections that are about the members of a class.
CLASSES: Final = {
    "Packhorse": Packhorse,
    "Task": Task,
    "JobHandle": JobHandle,
    "TenantView": TenantView,
    "Context": Context,
    "Consumer": Consumer,
    "Insights": Insights,
}
#: What asks no store, or is set up once; nothing of it can block an event loop for long.
WITHOUT_TWIN: Final = {
    "Packhorse": {
        "alert",
        "queue",
        "include",
        "use_store",
        "job",
        "tenant",
        "on",
        "middleware",
        "lifespan",
        "tool",
        "outbox",
        "schedule",
        "every",
        "topic",
        "workflow",
        "consumer",
    },
    "Task": {"call", "using", "job", "upcast"},
    "TenantView": {"job", "workflow"},
    "Context": {
        "breaker",
        "transaction",
        "progress",
        "idempotency_key",
        "snooze",
        "request_cancel",
        "detached",
        "let_go",
    },
}
_CALL: Final = re.compile(r"`(?:await )?(?:ctx\.)?(\w+)\(([^`)]*)\)")


def section(title: str) -> str:
    """What stands under a heading, up to the next of its level."""
    return re.split(r"^## ", PAGE.partition(f"\n## {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[
        0
    ]


def verbs(kind: type) -> list[str]:
    """The public methods of a class."""
    return [
        name
        for name, value in inspect.getmembers(kind)
        if not name.startswith("_") and (inspect.isfunction(value) or inspect.ismethod(value))
    ]


def parameters(function: object) -> list[inspect.Parameter]:
    assert callable(function)
    return list(inspect.signature(function).parameters.values())


@pytest.mark.parametrize("title", CLASSES)
def test_every_verb_is_documented_and_none_that_is_not_there(title: str) -> None:
    kind, text = CLASSES[title], section(title)
    twins = {f"a{name}" for name in verbs(kind)}
    internal = {"request_cancel", "detached", "let_go"}

    told = set(re.findall(r"\w+", text))
    assert {name for name in verbs(kind) if name not in twins | internal} - told == set()
    called = re.findall(r"^\| `(?:await )?(?:ctx\.)?(\w+)\(", text, flags=re.MULTILINE)
    unknown = {name for name in called if not hasattr(kind, name)}
    assert unknown == ({"task"} if kind is Task else set())  # the call of a task itself


@pytest.mark.parametrize("title", CLASSES)
def test_parameters_are_those_of_the_signature(title: str) -> None:
    kind = CLASSES[title]
    for name, given in _CALL.findall(section(title)):
        function = getattr(kind, name, None)
        if function is None or not callable(function) or "..." in given or '"' in given:
            continue
        known = parameters(function)
        if any(each.kind is each.VAR_KEYWORD for each in known):
            continue
        wanted = {part.split("=")[0].strip(" *") for part in given.split(",")} - {""}
        assert wanted <= {each.name for each in known}, f"{title}.{name}({given})"
        needed = [each.name for each in known if each.default is each.empty and each.name != "self"]
        assert set(needed) <= wanted, f"{title}.{name}({given})"


@pytest.mark.parametrize("title", CLASSES)
def test_every_verb_that_asks_the_store_has_an_async_twin(title: str) -> None:
    kind = CLASSES[title]
    blocking = {
        name
        for name in verbs(kind)
        if not inspect.iscoroutinefunction(getattr(kind, name))
        and name not in WITHOUT_TWIN.get(title, set())
    }
    if kind is Consumer:
        blocking -= {"cancel_requested"}  # known here; the rest is async alone

    blocking -= {f"a{name}" for name in blocking}  # such as `aeach`, for `async for`
    assert {name for name in blocking if f"a{name}" not in verbs(kind)} == set()


def test_the_app_is_made_as_the_page_says() -> None:
    line = re.search(r"^`Packhorse\((.*)\)`$", PAGE, flags=re.MULTILINE)
    assert line is not None

    told = {part.split("=")[0].strip() for part in line[1].split(",")} - {"*"}

    assert told == {each.name for each in parameters(Packhorse)}
    for name in told:
        assert re.search(rf"^\| .*`{name}`.* \|", section("Packhorse"), flags=re.MULTILINE), name


@pytest.mark.parametrize("scheme", ["sqlite", "postgresql", "redis", "memory"])
def test_every_kind_of_url_is_named(scheme: str) -> None:
    (row,) = re.findall(r"^\| `url` \|.*", PAGE, flags=re.MULTILINE)

    assert f"`{scheme}:" in row
