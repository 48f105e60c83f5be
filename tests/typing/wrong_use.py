# SPDX-License-Identifier: MIT
"""What type checkers must refuse, each line by itself. Checked, never run."""

from __future__ import annotations

import packhorse
from packhorse import Context, Packhorse, Router, chain, gather

app = Packhorse("memory://")


@app.task
async def send_email(to: str, subject: str = "") -> dict[str, str]:
    return {to: subject}


@app.task(queue="mail")
def resize(ctx: Context, path: str, *, width: int = 10) -> str:
    return path * width


router = Router(prefix="mail.")


@router.task
def fold(ctx: Context, paper: str) -> str:
    return paper


def wrong_routing() -> None:
    fold.enqueue(1)  # type: ignore[arg-type]
    fold.enqueue()  # type: ignore[call-arg]
    router.task(qeue="mail")  # type: ignore[call-overload]
    app.include(3)  # type: ignore[arg-type]


def wrong_names() -> None:
    packhorse.NoSuchName()  # type: ignore[attr-defined]
    send_email.delay("a")  # type: ignore[attr-defined]


def wrong_arguments() -> None:
    send_email.enqueue()  # type: ignore[call-arg]
    send_email.enqueue(1)  # type: ignore[arg-type]
    send_email.enqueue("a", "b", "c")  # type: ignore[call-arg]
    send_email.enqueue(too="a")  # type: ignore[call-arg]
    send_email.call("a", subject=3)  # type: ignore[arg-type]
    resize.enqueue(Context.detached(), "a")  # type: ignore[arg-type, call-arg]
    resize.enqueue("a", 3)  # type: ignore[call-arg]
    resize.enqueue("a", width="3")  # type: ignore[arg-type]
    resize.using(priority="high").enqueue(3)  # type: ignore[arg-type]
    resize("a", width="3")  # type: ignore[arg-type]
    resize()  # type: ignore[call-arg]


async def wrong_arguments_of_the_twins() -> None:
    await send_email.aenqueue()  # type: ignore[call-arg]
    await send_email.using(tenant="a").aenqueue(1)  # type: ignore[arg-type]
    await resize.aenqueue(path=1)  # type: ignore[arg-type]
    await send_email(1)  # type: ignore[arg-type]


def wrong_options() -> None:
    resize.using(priority="urgent")  # type: ignore[arg-type]
    resize.using(prioritty="high")  # type: ignore[call-arg]
    resize.using(deadline="tomorrow")  # type: ignore[arg-type]
    resize.call("a").using(delay=[1])  # type: ignore[arg-type]
    app.queue("mail", concurency=3)  # type: ignore[call-arg]
    app.queue("mail", rate_limit=100)  # type: ignore[arg-type]
    app.queue("mail", on_full="explode")  # type: ignore[arg-type]
    app.set_limits("mail", 5)  # type: ignore[call-overload]
    app.set_limits("mail", dead_letter="x")  # type: ignore[call-overload]
    resize.using(unique="path")  # type: ignore[arg-type]
    app.run(concurency=3)  # type: ignore[call-arg]
    app.task(executor="rocket")  # type: ignore[call-overload]
    app.task(qeue="mail")  # type: ignore[call-overload]


def wrong_results() -> None:
    number: int = resize.enqueue("a").result()  # type: ignore[assignment]
    text: str = send_email("a")  # type: ignore[assignment]
    resize.enqueue_many([send_email.call("a")])  # type: ignore[list-item]
    print(number, text)  # noqa: T201 - so that both are used


def wrong_workflows() -> None:
    flow = app.workflow("order-17")
    path = flow.add(resize.call("a.png"))
    resize.call("a.png", width=path.result)  # type: ignore[arg-type]
    flow.add(resize)  # type: ignore[arg-type]
    flow.add(resize.call("a.png"), on_failure="never")  # type: ignore[arg-type]
    app.workflow(17)  # type: ignore[arg-type]
    gather(resize.call("a.png"), resize.call("b.png")).then(resize)  # type: ignore[arg-type]
    chain(send_email.call("a"), resize)  # type: ignore[misc]
    chain(resize.call("a.png"), send_email, resize)  # type: ignore[misc]
    chain(resize.call("a.png"), 3)  # type: ignore[call-overload]
