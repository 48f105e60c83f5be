# SPDX-License-Identifier: MIT
"""The app: a task that uses tools and a model, under a contract.

Run a worker for it:  packhorse worker examples.ai_worker.jobs:app
"""

from __future__ import annotations

from examples.ai_worker import model
from packhorse import Context, Contract, NeedsHuman, Packhorse

app = Packhorse("sqlite:///ai.db", artifacts="artifacts")
app.tool("search", model.search)
app.tool("delete_everything", lambda: None)

CAREFUL = Contract(
    worker_id="researcher",
    purpose="answers a question from sources, for a person to approve",
    tools_allowed=["search"],
    max_tokens=2_000,
    max_attempts=5,
)


@app.task(contract=CAREFUL)
def research(ctx: Context, question: str) -> dict[str, str]:
    sources = ctx.step("search", ctx.tools["search"], question)
    text = ctx.step("write", _paid, ctx, sources)
    report = ctx.artifacts.put("report.txt", text.encode())
    if ctx.approval is None:
        raise NeedsHuman("may it be published?", code="review", outputs={"report": report.digest})
    return {"published": report.digest, "approved_by": ctx.approval.by}


@app.task(contract=Contract(worker_id="wanderer", tools_allowed=["search"], max_tokens=2_000))
def wander(ctx: Context, question: str) -> None:
    """Never has enough; the budget stops it."""
    while True:
        _paid(ctx, ctx.tools["search"](question))


@app.task(contract=Contract(worker_id="reckless", tools_allowed=["search"], max_attempts=1))
def delete_everything(ctx: Context) -> None:
    ctx.tools["delete_everything"]()


def _paid(ctx: Context, sources: list[str]) -> str:
    answer = model.write(sources)
    ctx.spend(tokens=answer.tokens)
    return answer.text
