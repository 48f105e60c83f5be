# SPDX-License-Identifier: MIT
"""Submitting while the store is away: kept in a local file, delivered once and in order."""

from __future__ import annotations

from packhorse.client.spool.connection import SpoolingConnection
from packhorse.client.spool.file import SpoolFile

__all__ = ["SpoolFile", "SpoolingConnection"]
