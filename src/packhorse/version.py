# SPDX-License-Identifier: MIT
"""Which release this is."""

from __future__ import annotations


def installed_version() -> str:
    """The installed release's number."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - slow to import

    try:
        return version("packhorse")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "0+uninstalled"
