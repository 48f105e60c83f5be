# SPDX-License-Identifier: MIT
"""Four questions for a flow: two it can answer, one it cannot, one that takes too long."""

from __future__ import annotations

import asyncio

from examples.penguiflow_host.flow import build
from packhorse import Packhorse, RetryPolicy
from packhorse.hosting.penguiflow import FlowHost

app = Packhorse("sqlite:///flows.db")
app.queue("flows", retry=RetryPolicy(max_retries=1, initial_delay="10ms"))


@app.task(queue="flows", timeout="2s")
def ask(subject: str) -> dict[str, str]:
    raise NotImplementedError  # it only declares the call: the work is done in flows


async def main() -> None:
    subjects = ("penguins", "mules", "dragons", "glaciers")
    jobs = [await ask.using(tenant="zoo").aenqueue(subject) for subject in subjects]
    host = FlowHost(app, build, mode="long_lived", queues=["flows"])
    await host.run(burst=True)

    for subject, job in zip(subjects, jobs, strict=True):
        info = await job.ainfo()
        said = info.error.reason if info.error else (await job.aresult())["answer"]
        print(f"{subject}: {info.status}, {said}, {info.attempts} attempts")
    counted = [line for line in host.figures.text().splitlines() if 'node="answer"' in line]
    print(next(line for line in counted if line.startswith("packhorse_flow_node_seconds_count")))
    await app.aclose()


if __name__ == "__main__":
    asyncio.run(main())
