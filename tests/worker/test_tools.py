# SPDX-License-Identifier: MIT
"""Handlers use the tools that their contracts allow, and no others."""

from __future__ import annotations

import pytest

from packhorse import ConfigError, Context, Contract, JobStatus, Packhorse
from packhorse.core.job import DeadReason
from packhorse.errors import ToolNotAllowed, ToolNotFound
from packhorse.stores.memory import MemoryStore
from packhorse.testing import make_context


@pytest.fixture
def app() -> Packhorse:
    made = Packhorse(store=MemoryStore())
    made.tool("search", lambda words: f"found {words}")

    async def fetch(url: str) -> str:
        return f"page {url}"

    made.tool("fetch", fetch)
    return made


async def test_a_handler_uses_tools_of_the_app_sync_and_async(app: Packhorse) -> None:
    @app.task(contract=Contract(tools_allowed=["search", "fetch"]))
    async def work(ctx: Context) -> list[str]:
        return [ctx.tools["search"]("a"), await ctx.tools["fetch"]("b"), *sorted(ctx.tools)]

    @app.task
    def plain(ctx: Context) -> str:
        words: str = ctx.tools["search"]("c")
        return words

    first, second = await work.aenqueue(), await plain.aenqueue()
    await app.arun(burst=True)

    assert await first.aresult() == ["found a", "page b", "fetch", "search"]
    assert await second.aresult() == "found c"


@pytest.mark.req("S0-13")
@pytest.mark.parametrize(
    ("tool", "code"), [("fetch", "TOOL_NOT_ALLOWED"), ("translate", "TOOL_NOT_FOUND")]
)
async def test_another_tool_is_refused_with_a_stable_code_and_not_tried_again(
    app: Packhorse, tool: str, code: str
) -> None:
    @app.task(contract=Contract(tools_allowed=["search", "translate"]))
    def work(ctx: Context) -> None:
        assert tool not in ctx.tools
        ctx.tools[tool]

    job = await work.aenqueue()
    await app.arun(burst=True)

    info = await job.ainfo()
    assert (info.status, info.dead_reason, info.attempts) == (
        *(JobStatus.DEAD, DeadReason.REJECTED),
        1,
    )
    assert info.error is not None
    assert info.error.code == code
    response = await job.aresponse()
    assert response is not None
    assert response.error.code == code.lower()  # type: ignore[union-attr]


def test_a_refusal_says_what_is_allowed(app: Packhorse) -> None:
    @app.task(contract=Contract(tools_allowed=()))
    def work(ctx: Context) -> None:
        ctx.tools["search"]

    with pytest.raises(ToolNotAllowed, match="its contract allows none") as told:
        work()  # a direct call is held to it too

    assert (told.value.tool, told.value.allowed) == ("search", ())


def test_a_test_gives_tools_of_its_own() -> None:
    ctx = make_context(tools={"search": len}, task="work")

    assert ctx.tools["search"]("abc") == 3
    with pytest.raises(ToolNotFound, match=r"register it with app\.tool\('fetch', function\)"):
        ctx.tools["fetch"]


def test_a_tool_has_one_name_and_is_a_function(app: Packhorse) -> None:
    app.tool("length", len)
    app.tool("length", len)
    for name, function, words in (
        ("length", print, "registered twice"),
        ("", len, "give a text"),
        ("text", "no function", "give a function"),
    ):
        with pytest.raises(ConfigError, match=words):
            app.tool(name, function)  # type: ignore[type-var]
