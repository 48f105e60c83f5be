# SPDX-License-Identifier: MIT
"""Files of SQLite with all tables and no rows, to be copied: that is faster than making them."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from packhorse.stores import open_store
from tests.support import folders


def empty_file(path: Path) -> Path:
    """Put a file with an empty store there."""
    return Path(shutil.copyfile(_template(), path))


@cache
def _template() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="packhorse-sqlite-", dir=folders.root()))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = folder / "jobs.db"
    store = open_store(f"sqlite:///{made}")
    store.migrate()
    store.close()
    return made
