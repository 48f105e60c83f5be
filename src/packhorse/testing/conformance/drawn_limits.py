# SPDX-License-Identifier: MIT
"""Strategies of the limits machine: few keys and tight limits, so that jobs interact."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from hypothesis import strategies as st

from packhorse.core.clock import SECOND_US
from packhorse.core.job import (
    IdempotencyRule,
    OnConflict,
    Priority,
    RateRule,
    UniqueRule,
    UniqueScope,
)
from packhorse.core.outcome import Limited, Outcome
from packhorse.core.policies.retention import Retention
from packhorse.core.sizes import THE_STORE
from packhorse.stores.requests import QueueSettings, TaskSettings
from packhorse.testing.conformance import drawn
from packhorse.testing.conformance.drawn import QUEUES, SHELF, TASKS
from packhorse.testing.conformance.samples import LEASE_US

_WINDOW_US: Final = 10 * SECOND_US
_KEYS: Final = ("k", "l")
_TENANTS: Final = ("", "acme", "umbrella")

#: Among them the window of a rate, and that window plus one slot.
spans_us = st.sampled_from(
    [1, SECOND_US, 5 * SECOND_US, _WINDOW_US, _WINDOW_US + SECOND_US, LEASE_US, 3600 * SECOND_US]
)
_delays_us = st.sampled_from([0, 0, 0, 1, SECOND_US, 5 * SECOND_US])
_keys = st.sampled_from(_KEYS)

_unlimited_in_time = st.builds(
    UniqueRule,
    key=_keys,
    scope=st.sampled_from([UniqueScope.UNTIL_STARTED, UniqueScope.UNTIL_FINISHED]),
    on_conflict=st.sampled_from([mode for mode in OnConflict if mode != OnConflict.THROTTLE]),
)
_in_a_window = st.builds(
    UniqueRule,
    key=_keys,
    scope=st.just(UniqueScope.WINDOW),
    on_conflict=st.sampled_from(OnConflict),
    window_us=st.just(_WINDOW_US),
)
_idempotency = st.builds(
    IdempotencyRule,
    key=_keys,
    digest=st.sampled_from(["one", "one", "two"]),
    window_us=st.just(_WINDOW_US),
)

#: What a submit asks for; instants are given as spans from now.
wishes: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "queue": st.sampled_from([*QUEUES, *QUEUES, SHELF]),
        "task": st.sampled_from(TASKS),
        "padding": st.sampled_from([1, 20, 3000]),
        "priority": st.sampled_from([Priority.CRITICAL, Priority.NORMAL, Priority.LOW]),
        "delay_us": _delays_us,
        "deadline_us": st.sampled_from([1, LEASE_US, 3600 * SECOND_US]),
        "tenant": st.sampled_from(_TENANTS),
        "ordering_key": _keys,
        "concurrency_key": _keys,
        "rate_key": _keys,
        "weight": st.sampled_from([1, 2, 3]),
        "unique": _unlimited_in_time | _in_a_window,
        "idempotency": _idempotency,
    },
)

outcomes: st.SearchStrategy[Outcome] = drawn.outcomes | st.builds(
    Limited, retry_after_us=st.sampled_from([0, SECOND_US, 5 * SECOND_US])
)

_concurrency = st.sampled_from([None, 1, 2])
_rates = st.sampled_from([None, None, RateRule(1, _WINDOW_US), RateRule(2, _WINDOW_US)])


def _with_order(settings: QueueSettings, order: str) -> QueueSettings:
    """Set fair shares or ageing, which exclude each other."""
    if order == "fair":
        return msgspec.structs.replace(settings, fair=True, weights={"acme": 2})
    ageing_us = SECOND_US if order == "aged" else None
    return msgspec.structs.replace(settings, fair=False, ageing_us=ageing_us)


_limits = st.builds(
    QueueSettings,
    name=st.sampled_from(QUEUES),
    priority=st.integers(0, 1),
    dead_letter=st.sampled_from([None, None, SHELF, QUEUES[1]]),
    retention=st.none() | st.just(Retention(SECOND_US, SECOND_US, LEASE_US)),
    concurrency=_concurrency,
    rate=_rates,
    tenant_rate=_rates,
    max_depth=st.sampled_from([None, None, 2, 4]),
    max_bytes=st.sampled_from([None, None, 4, 60, 3050]),
    on_full=st.sampled_from(["reject", "wait", "drop", "drop"]),
    on_dead=st.sampled_from(["release", "hold"]),
)
_of_the_store = st.builds(
    QueueSettings, name=st.just(THE_STORE), max_bytes=st.sampled_from([None, 100, 6200])
)
queue_settings = _of_the_store | st.builds(
    _with_order, _limits, st.sampled_from(["fair", "fair", "aged", "plain"])
)
task_settings = st.builds(
    TaskSettings, name=st.sampled_from(TASKS), concurrency=_concurrency, rate=_rates
)
#: What of a queue is paused: all of it, a key or a tenant.
parts: st.SearchStrategy[dict[str, str]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"key": _keys}),
    st.fixed_dictionaries({"tenant": st.sampled_from(_TENANTS)}),
)
