# SPDX-License-Identifier: MIT
"""What this process does just now: fork, run a loop, collect garbage, call us from user code."""

from __future__ import annotations

import builtins
import gc
import inspect
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

#: After how many new objects an interpreter looks for garbage unless told otherwise.
_DEFAULT_YOUNG: Final = frozenset({700, 2000})
#: And a worker. Those of a hundred attempts under way are young and alive: each look at them is for
#: nothing, and with 700 they are looked at several times before they end.
YOUNG_OBJECTS: Final = 10_000
#: How many microseconds a thread waits before it demands the interpreter unless told otherwise.
_DEFAULT_SWITCH_US: Final = 5_000
#: And beside a worker. The thread of a SQLite store needs the interpreter for a moment after each
#: statement. With 5 ms it would wait until the event loop has run all the jobs that it holds.
SWITCH_US: Final = 100


def at_fork(forget: Callable[[], None], **others: Callable[[], None]) -> None:
    """Call a method in every forked child, for as long as its object lives.

    `others` are called at other moments, named as by `os.register_at_fork`.
    """

    def weak(method: Callable[[], None]) -> Callable[[], None]:
        known = weakref.WeakMethod(method)

        def call() -> None:
            bound = known()
            if bound is not None:
                bound()

        return call

    if hasattr(os, "register_at_fork"):
        methods = {"after_in_child": forget, **others}
        os.register_at_fork(**{when: weak(method) for when, method in methods.items()})


def in_event_loop() -> bool:
    """Whether this thread runs an event loop, which a blocking call would hold up."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:  # never imported, so nothing runs on it
        return False
    # Asked at every submit: `get_running_loop` would raise, which costs ten times as much.
    return asyncio.events._get_running_loop() is not None  # noqa: SLF001 - public in `events`


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Look for young garbage less often meanwhile, unless the program has said how often."""
    before = gc.get_threshold()
    changed = before[0] in _DEFAULT_YOUNG
    if changed:
        gc.set_threshold(YOUNG_OBJECTS, *before[1:])
    try:
        yield
    finally:
        if changed and gc.get_threshold()[0] == YOUNG_OBJECTS:
            gc.set_threshold(*before)


@contextmanager
def prompt_switches() -> Iterator[None]:
    """Let threads have the interpreter sooner meanwhile, unless the program has said how soon."""
    changed = switch_us() == _DEFAULT_SWITCH_US
    if changed:
        sys.setswitchinterval(SWITCH_US / 1e6)
    try:
        yield
    finally:
        if changed and switch_us() == SWITCH_US:
            sys.setswitchinterval(_DEFAULT_SWITCH_US / 1e6)


def switch_us() -> int:
    """Return the switch interval of the interpreter, which keeps whole microseconds."""
    return round(sys.getswitchinterval() * 1e6)


def user_stacklevel() -> int:
    """Return the stack level of the first caller outside this package, for `warnings.warn`."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("packhorse."):
        level, frame = level + 1, frame.f_back
    return level


def is_interactive() -> bool:
    """Whether a person types this program while it runs, as in a notebook."""
    return hasattr(builtins, "__IPYTHON__") or not hasattr(sys.modules.get("__main__"), "__file__")
