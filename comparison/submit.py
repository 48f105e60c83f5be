# SPDX-License-Identifier: MIT
"""Runs in the environment of one contestant: `python -m comparison.submit MODULE VERB ...`.

`prepare` creates what its store needs, `stream SEED SECONDS` submits the jobs of the plan, each at
its time, and records which were accepted, `held` prints how many jobs its store would still run.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import ModuleType

from comparison import plan
from comparison.place import record_path
from comparison.record import note

#: Submits one job, by its number and length.
Submit = Callable[[int, float], Awaitable[object] | object]
Opened = Callable[[], AbstractAsyncContextManager[Submit]]


def main(module: str, verb: str, *arguments: str) -> None:
    """Do one of the three."""
    app = importlib.import_module(module)
    match verb:
        case "prepare":
            _call(app, "prepare", None)
        case "stream":
            asyncio.run(_stream(app, *map(int, arguments)))
        case "held":
            print(_call(app, "held", 0))
        case _:
            raise SystemExit(f"there is no {verb}")


def _call(app: ModuleType, name: str, otherwise: object) -> object:
    function = getattr(app, name, None)
    answer = otherwise if function is None else function()
    return asyncio.run(answer) if inspect.iscoroutine(answer) else answer


async def _stream(app: ModuleType, seed: int, seconds: int) -> None:
    opened: Opened = app.submitting
    path = record_path()
    async with opened() as submit:
        began = time.monotonic()
        for job in plan.jobs(seed, seconds):
            await asyncio.sleep(max(0.0, began + job.at - time.monotonic()))
            try:
                answer = submit(job.number, job.seconds)
                if inspect.isawaitable(answer):
                    await answer
            except Exception as error:  # noqa: BLE001 - whatever it is, it was not accepted
                print(f"job {job.number} was refused: {error!r}", file=sys.stderr)
                note(path, "refused", job.number)
            else:
                note(path, "accepted", job.number)


if __name__ == "__main__":
    main(*sys.argv[1:])
