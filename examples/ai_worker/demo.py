# SPDX-License-Identifier: MIT
"""A report that waits for a person, one that costs too much, and a tool that is not allowed."""

from __future__ import annotations

from examples.ai_worker.jobs import app, delete_everything, research, wander
from examples.ai_worker.model import usage


def main() -> None:
    job = research.enqueue("packhorses")
    app.run(burst=True)
    print(f"report: {job.status()}, {job.explain().codes[0]}, {job.info().tokens_spent} tokens")

    job.approve(by="ada", note="well said")
    app.run(burst=True)
    [report] = job.artifacts()
    print(f"approved by {job.result()['approved_by']}: {report.read().decode().splitlines()[0]}")
    print(f"searched {usage.searches} time, asked the model {usage.answers} time")

    stopped = wander.enqueue("everything")
    refused = delete_everything.enqueue()
    app.run(burst=True)
    for name, one in (("wander", stopped), ("delete_everything", refused)):
        info = one.info()
        print(f"{name}: {info.status}, {info.error.code if info.error else ''}")
    app.close()


if __name__ == "__main__":
    main()
