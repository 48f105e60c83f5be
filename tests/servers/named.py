# SPDX-License-Identifier: MIT
"""Servers that the environment names, to test against instead of private ones."""

from __future__ import annotations

import os


def named_server(variable: str) -> str | None:
    """Return the server that an environment variable names; refuse an empty variable."""
    named = os.environ.get(variable)
    if named is not None and not named.strip():
        raise RuntimeError(f"{variable} is set and empty; name a server in it, or unset it")
    return named
