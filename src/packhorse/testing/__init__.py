# SPDX-License-Identifier: MIT
"""For tests: an app on its own store, a clock that a test moves, and the conformance suite.

plugin          the fixture `packhorse_app`; pytest loads it by itself
apps            `use` and `TestApp`: an app on another store and another clock, for one test
contexts        `make_context`: a context for a handler that is called directly
idempotency     `check_idempotent`: crash a handler everywhere, and see what happens twice
effects         what such a check watches, and how it interrupts
virtual_clock   `VirtualClock`: stands still until it is told to move
conformance     the promises of a store as tests, for authors of stores; needs pytest and
                hypothesis, so it is imported only by name
"""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from packhorse.testing.apps import TestApp, use
    from packhorse.testing.contexts import RecordingContext, make_context
    from packhorse.testing.idempotency import (
        Finding,
        IdempotencyReport,
        NotIdempotent,
        acheck_idempotent,
        check_idempotent,
    )
    from packhorse.testing.virtual_clock import VirtualClock

__all__ = [
    "Finding",
    "IdempotencyReport",
    "NotIdempotent",
    "RecordingContext",
    "TestApp",
    "VirtualClock",
    "acheck_idempotent",
    "check_idempotent",
    "make_context",
    "use",
]

# Imported when first asked for: pytest loads the plugin in projects that never use it.
_HOMES: Final = MappingProxyType(
    {
        "Finding": "idempotency",
        "IdempotencyReport": "idempotency",
        "NotIdempotent": "idempotency",
        "RecordingContext": "contexts",
        "TestApp": "apps",
        "VirtualClock": "virtual_clock",
        "acheck_idempotent": "idempotency",
        "check_idempotent": "idempotency",
        "make_context": "contexts",
        "use": "apps",
    }
)


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'packhorse.testing' has no attribute {name!r}")
        return getattr(import_module(f"packhorse.testing.{home}"), name)
