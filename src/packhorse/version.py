# SPDX-License-Identifier: MIT
"""Which release this is."""

from __future__ import annotations

from typing import Final

#: As in pyproject.toml. To ask for what is installed would take a worker longer than to open its
#: store.
_RELEASE: Final = "0.1.0"


def installed_version() -> str:
    """The release's number."""
    return _RELEASE
