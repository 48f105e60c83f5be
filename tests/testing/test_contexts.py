# SPDX-License-Identifier: MIT
"""A context for a handler that is called directly."""

from __future__ import annotations

import pytest

from packhorse import Context, Packhorse, Snooze
from packhorse.testing import make_context

app = Packhorse("memory://")


@app.task
def resize(ctx: Context, path: str) -> str:
    ctx.progress(1, 2, "half")
    if ctx.cancel_requested or ctx.lease_lost or not ctx.still_mine():
        return "stopped"
    if ctx.job.attempt == 1:
        ctx.snooze("5m")
    return f"{ctx.state['folder']}/{path} for {ctx.job.tenant} in {ctx.job.queue}"


def test_a_handler_gets_the_state_and_the_job_it_is_given() -> None:
    ctx = make_context(state={"folder": "small"}, tenant="acme", queue="pictures", attempt=2)

    assert resize.function(ctx, "a.png") == "small/a.png for acme in pictures"
    assert [(note.done, note.total, note.note) for note in ctx.noted] == [(1, 2, "half")]


def test_its_signals_are_raised() -> None:
    with pytest.raises(Snooze):
        resize.function(make_context(), "a.png")


def test_it_is_cancelled_and_loses_its_lease_when_the_test_says_so() -> None:
    cancelled, lost = make_context(), make_context()
    cancelled.request_cancel()
    lost.lose_lease()

    assert [resize.function(ctx, "a.png") for ctx in (cancelled, lost)] == ["stopped"] * 2


async def test_the_twin_answers_the_same() -> None:
    ctx = make_context(job_id="j")

    assert await ctx.astill_mine()
    ctx.lose_lease()
    assert not await ctx.astill_mine()
    assert (ctx.job.id, ctx.job.fence, ctx.state) == ("j", 1, {})
