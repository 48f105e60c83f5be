# SPDX-License-Identifier: MIT
"""For development: new processes whenever a Python file changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from packhorse.supervisor.supervisor import Supervisor

__all__ = ["reloading"]

#: Files named as the reason; more of them changed for the same one.
_NAMED: Final = 3


@contextlib.asynccontextmanager
async def reloading(supervisor: Supervisor, folder: Path | None) -> AsyncIterator[None]:
    """Replace the processes while inside, if there is a folder to watch."""
    if folder is None:
        yield
        return
    watching = asyncio.create_task(_watch(supervisor, folder))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _watch(supervisor: Supervisor, folder: Path) -> None:
    from watchfiles import PythonFilter, awatch  # noqa: PLC0415 - an extra, and only for this

    async for changes in awatch(folder, watch_filter=PythonFilter()):
        names = sorted({str(Path(path).relative_to(folder)) for _, path in changes})
        shown = ", ".join(names[:_NAMED])
        supervisor.replace_all(f"{shown} changed")
