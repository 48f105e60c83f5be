# SPDX-License-Identifier: MIT
"""Where jobs live: the contracts, and the stores that keep them."""

from __future__ import annotations

from packhorse.stores.opening import open_store

__all__ = ["open_store"]
