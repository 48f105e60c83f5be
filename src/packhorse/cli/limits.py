# SPDX-License-Identifier: MIT
"""Limits of a queue, as they are written on the command line and shown."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import click

from packhorse.durations import seconds_text

if TYPE_CHECKING:
    from packhorse.job import RateRule
    from packhorse.stores.requests import QueueSettings

__all__ = ["limit_texts", "limits_document", "parse_limits"]

#: Takes a limit away.
_NONE: Final = "none"
_MILLISECOND_US: Final = 1_000


def parse_limits(texts: Iterable[str]) -> dict[str, Any]:
    """Limits written as name=value, by the names `app.set_limits` takes."""
    limits: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise click.UsageError(f"{text!r} is no limit; write it as name=value")
        if name not in _READERS:
            raise click.UsageError(f"there is no limit {name!r}; {_hint(name)}")
        if name in limits:
            raise click.UsageError(f"{name} is given twice")
        limits[name] = None if value.strip().lower() == _NONE else _read(name, value.strip())
    return limits


def _hint(name: str) -> str:
    near = difflib.get_close_matches(name, _READERS, n=1)
    return f"did you mean {near[0]!r}?" if near else f"the limits are {', '.join(_READERS)}"


def _read(name: str, value: str) -> Any:
    reader, form = _READERS[name]
    try:
        return reader(value)
    except ValueError:
        raise click.UsageError(f"{name} is {value!r}; write {form}, or none") from None


def _rate(text: str) -> tuple[int, str]:
    most, slash, window = text.partition("/")
    if not slash or not window:
        raise ValueError(text)
    return int(most), window.strip()


def _switch(text: str) -> bool:
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]


def _weights(text: str) -> dict[str, float]:
    pairs = [part.rpartition(":") for part in text.split(",")]
    return {tenant.strip(): float(weight) for tenant, _, weight in pairs}


_NUMBER: Final = (int, "a whole number")
_RATE: Final = (_rate, "how many and the window, such as 100/60s")

_READERS: Final[Mapping[str, tuple[Callable[[str], Any], str]]] = MappingProxyType(
    {
        "priority": _NUMBER,
        "concurrency": _NUMBER,
        "rate_limit": _RATE,
        "tenant_rate_limit": _RATE,
        "max_depth": _NUMBER,
        "on_full": (str, "reject, wait or drop"),
        "soft_depth": _NUMBER,
        "fair": (_switch, "true or false"),
        "weights": (_weights, "tenants and shares, such as acme:2,globex:0.5"),
        "ageing": (str, "a span, such as 5m"),
        "on_dead": (str, "release or hold"),
    }
)


def limits_document(settings: QueueSettings) -> dict[str, Any]:
    """What --json shows of a queue's limits; null is no limit."""
    ageing_us = settings.ageing_us
    return {
        "concurrency": settings.concurrency,
        "rateLimit": _rate_document(settings.rate),
        "tenantRateLimit": _rate_document(settings.tenant_rate),
        "maxDepth": settings.max_depth,
        "onFull": settings.on_full,
        "softDepth": settings.soft_depth,
        "fair": settings.fair,
        "weights": settings.weights,
        "ageingMs": None if ageing_us is None else ageing_us // _MILLISECOND_US,
        "onDead": settings.on_dead,
    }


def _rate_document(rule: RateRule | None) -> dict[str, int] | None:
    if rule is None:
        return None
    return {"max": rule.max, "windowMs": rule.window_us // _MILLISECOND_US}


def limit_texts(settings: QueueSettings) -> Iterator[str]:
    """The limits a queue has, a few words each."""
    if settings.concurrency is not None:
        yield f"{settings.concurrency} at once"
    if settings.rate is not None:
        yield f"{_rate_text(settings.rate)}"
    if settings.tenant_rate is not None:
        yield f"{_rate_text(settings.tenant_rate)} a tenant"
    if settings.max_depth is not None:
        yield f"{settings.max_depth} waiting ({settings.on_full})"
    if settings.soft_depth is not None:
        yield f"filling from {settings.soft_depth}"
    if settings.ageing_us is not None:
        yield f"ageing {seconds_text(settings.ageing_us)}"
    if settings.weights:
        yield "shares " + ", ".join(f"{name} {share:g}" for name, share in settings.weights.items())
    if settings.on_dead == "hold":
        yield "dead jobs hold their line"


def _rate_text(rule: RateRule) -> str:
    return f"{rule.max} in {seconds_text(rule.window_us)}"
