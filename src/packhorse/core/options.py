# SPDX-License-Identifier: MIT
"""The options users give by name, and the checks that all of them share.

Each set of options is a `TypedDict`, so that type checkers know the names and the messages below
can list them; an option that is absent, or None, follows what is set further out.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypedDict

from packhorse.contract import Contract
from packhorse.core.clock import from_datetime
from packhorse.core.durations import Duration, positive_microseconds
from packhorse.core.job import NUMBER_MAX, PRIORITY_BY_NAME, Priority, RateRule, RetryRule
from packhorse.core.keys import KEY_LENGTH_MAX, KeySource
from packhorse.core.policies.depth import OnFull
from packhorse.core.policies.gates import OnDead
from packhorse.core.policies.rate_limit import check_rate, check_weight
from packhorse.core.policies.retry import RetryPolicy
from packhorse.core.sizes import Size
from packhorse.errors import ConfigError
from packhorse.unique import Unique

#: Reads the value of an option; its second argument names the option in error messages.
Reader = Callable[[Any, str], Any]
PriorityName = Literal["critical", "high", "normal", "low", "background"]
#: So many, in any window so long: `(100, "60s")`, `"100/60s"`, `"100/min"`.
RateLimit = tuple[int, Duration] | str


class TaskOptions(TypedDict, total=False):
    """What `app.task(...)` takes."""

    name: str | None
    queue: str | None
    timeout: Duration | None
    retry: RetryPolicy | None
    aliases: Iterable[str] | None
    max_crashes: int | None
    max_snoozes: int | None
    result_ttl: Duration | None
    max_result_bytes: int | None
    executor: Literal["thread", "process"] | None
    concurrency: int | None
    concurrency_key: KeySource | None
    rate_limit: RateLimit | None
    rate_key: KeySource | None
    unique: Unique | None
    idempotency_window: Duration | None
    contract: Contract | str | os.PathLike[str] | None


class CallOptions(TypedDict, total=False):
    """What `task.using(...)` and `call.using(...)` take."""

    priority: PriorityName | Priority | None
    delay: Duration | None
    tenant: str | None
    tags: Iterable[str] | None
    queue: str | None
    timeout: Duration | None
    deadline: datetime | None
    scheduled_at: datetime | None
    retry: RetryPolicy | None
    trace_id: str | None
    upstream_request_id: str | None
    created_by: str | None
    job_id: str | None
    ordering_key: str | None
    concurrency_key: str | None
    rate_key: str | None
    weight: int | None
    idempotency_key: str | None
    idempotency_window: Duration | None
    unique: Unique | None
    wait: Duration | None
    tx: object  #: a connection with an open transaction: `client.user_connections`
    notify: bool | None


class RetentionOptions(TypedDict, total=False):
    """How long a queue keeps what is over; None keeps for ever."""

    finished: Duration | None  #: records of completed and cancelled jobs
    results: Duration | None
    dead: Duration | None


class ScaleOptions(TypedDict, total=False):
    """When a queue wants more or fewer workers; sizes are jobs ready to run."""

    enabled: bool | None
    min_workers: int | None
    max_workers: int | None
    scale_up: int | None
    scale_down: int | None


class LimitOptions(TypedDict, total=False):
    """What may be set of a queue while it is in use, by `app.set_limits(queue, ...)`."""

    priority: int | None
    concurrency: int | None
    rate_limit: RateLimit | None
    tenant_rate_limit: RateLimit | None
    max_depth: int | None
    max_bytes: Size | None
    on_full: OnFull | None
    soft_depth: int | None
    fair: bool | None
    weights: Mapping[str, float] | None
    ageing: Duration | None
    on_dead: OnDead | None


class QueueOptions(LimitOptions, total=False):
    """What `app.queue(name, ...)` takes."""

    dead_letter: str | None
    retry: RetryPolicy | None
    retention: Duration | RetentionOptions | None
    wait_timeout: Duration | None
    require_tenant: bool | None
    unique_traces: bool | None
    background_only: bool | None  #: run `background` jobs only while nothing else waits
    autoscale: ScaleOptions | None


def read_options(
    chosen: Mapping[str, Any], readers: Mapping[str, tuple[str, Reader]], where: str
) -> dict[str, Any]:
    """Read options into fields; `readers` has the field of each option, and how it is read."""
    found = {}
    for option, value in chosen.items():
        field, read = readers[option]
        found[field] = read(value, f"{where}{option}")
    return found


_RETRIES: Final = (
    "retry=RetryPolicy(max_retries=..., initial_delay=..., max_delay=..., retry_on=...)"
)
#: Options that people know from Celery, RQ and Dramatiq, and what they write here.
_ELSEWHERE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "countdown": "task.using(delay=...)",
        "eta": "task.using(scheduled_at=...)",
        "expires": "task.using(deadline=...)",
        "at_front": 'task.using(priority="critical")',
        "task_id": "task.using(job_id=...)",
        "bind": "a first parameter `ctx: Context`",
        "actor_name": "name=...",
        **dict.fromkeys(("time_limit", "soft_time_limit", "job_timeout"), "timeout=..."),
        **dict.fromkeys(("queue_name", "routing_key"), "queue=..."),
        **dict.fromkeys(("max_retries", "autoretry_for", "retry_backoff", "throws"), _RETRIES),
        **dict.fromkeys(("default_retry_delay", "min_backoff", "max_backoff"), _RETRIES),
        **dict.fromkeys(("ignore_result", "store_results"), "result_ttl=..."),
    }
)
#: The same for what their tasks can do.
VERBS_ELSEWHERE: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("delay", "send"), "enqueue(...)"),
        **dict.fromkeys(("apply_async", "send_with_options"), "using(...).enqueue(...)"),
        **dict.fromkeys(("s", "si", "signature", "message"), "call(...)"),
    }
)


def chosen_options(given: Mapping[str, Any], known: type, where: str) -> dict[str, Any]:
    """The options that say something; a name that does not exist is an error with a suggestion."""
    names = known.__annotations__
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(names)}"
            if name in _ELSEWHERE:
                hint = f"what other queues call so is {_ELSEWHERE[name]} here"
            raise ConfigError(f"{where}: there is no option {name!r}; {hint}")
    return {name: value for name, value in given.items() if value is not None}


def name_text(value: object, setting: str) -> str:
    """A text that names something, so it cannot be empty."""
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{setting} is {value!r}; give a text that is not empty")
    return stored_text(value, setting)


def stored_text(value: object, setting: str) -> str:
    """A text that every store keeps as it is; of a member of an `Enum`, what it stands for."""
    if not isinstance(value, str):
        raise ConfigError(f"{setting} is {value!r}; give a text")
    text = str.__str__(value)
    if "\0" in text or not _has_utf_8(text):
        raise ConfigError(f"{setting} is {text!r}; give a text without NUL and lone surrogates")
    return text


def _has_utf_8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a character
        return False
    return True


def text_tuple(value: object, setting: str) -> tuple[str, ...]:
    """Some texts; one bare string is a mistake, since it would become its letters."""
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise ConfigError(f"{setting} is {value!r}; give a list of texts")
    texts = tuple(value)
    for text in texts:
        if not isinstance(text, str):
            raise ConfigError(f"{setting} holds {text!r}; give texts only")
    return tuple([stored_text(text, setting) for text in texts])


def count(value: object, setting: str) -> int:
    """A whole number from 0."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= NUMBER_MAX:
        raise ConfigError(f"{setting} is {value!r}; give a whole number, 0 to {NUMBER_MAX}")
    return value


def priority_level(value: object, setting: str) -> int:
    """A priority by its name or as a `Priority`."""
    if isinstance(value, Priority):
        return int(value)
    found = PRIORITY_BY_NAME.get(value) if isinstance(value, str) else None
    if found is None:
        names = ", ".join(PRIORITY_BY_NAME)
        raise ConfigError(f"{setting} is {value!r}; give one of {names}, or a Priority")
    return int(found)


def instant_us(value: object, setting: str) -> int:
    """An instant; a datetime without a zone would mean another one on every machine."""
    if not isinstance(value, datetime):
        raise ConfigError(f"{setting} is {value!r}; give an aware datetime")
    if value.utcoffset() is None:
        raise ConfigError(
            f"{setting} is {value.isoformat()}, without a time zone; "
            "give an aware datetime, such as datetime.now(UTC)"
        )
    return from_datetime(value)


def retry_rule(value: object, setting: str) -> RetryRule:
    """A retry policy as stores keep it."""
    if not isinstance(value, RetryPolicy):
        raise ConfigError(f"{setting} is {value!r}; give a RetryPolicy(...)")
    return value.rule


_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_PAIR: Final = 2
#: `10/min`, `100/60s`, and how a contract writes it: `per-tenant (example: 10/min)`.
_RATE: Final = re.compile(
    r"(?:(?P<tenant>per[ -]tenant)\b *:? *)?"
    r"(?P<open>\()? *(?:example: *)?(?P<most>\d+) */ *(?P<window>[^()/]*[^()/ ]) *(?(open)\))",
    re.ASCII | re.IGNORECASE,
)
#: Windows of one unit by the names people give them; any other is a duration.
_UNITS: Final[Mapping[str, str]] = MappingProxyType(
    {
        name: window
        for window, names in (
            ("1s", "s sec second"),
            ("1m", "m min minute"),
            ("1h", "h hr hour"),
            ("1d", "d day"),
        )
        for name in names.split()
    }
)


class WrittenRate(NamedTuple):
    """A rate limit as it was written."""

    most: int
    window: Duration
    per_tenant: bool = False


def read_rate(text: str) -> WrittenRate:
    """A rate limit from its text; `ValueError` if it is none."""
    found = _RATE.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    window = found["window"].lower()
    return WrittenRate(
        int(found["most"]), _UNITS.get(window, window), per_tenant=found["tenant"] is not None
    )


def is_per_tenant(value: object) -> bool:
    """Whether a text says of itself that it limits each tenant."""
    try:
        return isinstance(value, str) and read_rate(value).per_tenant
    except ValueError:
        return False


def rate_rule(value: object, setting: str) -> RateRule:
    """A rate limit as stores keep it."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = read_rate(value)[:_PAIR]
    if not isinstance(value, tuple | list) or len(value) != _PAIR:
        raise ConfigError(
            f"{setting} is {value!r}; give how many and the window they are for, such as "
            '(100, "60s") or "100/min"'
        )
    rule = RateRule(value[0], positive_microseconds(value[1], setting=f"{setting}: its window"))
    check_rate(rule, setting=setting)
    return rule


def key_text(value: object, setting: str) -> str:
    """A key or name as it is given, not taken from arguments; stores index it, so it is short."""
    return bounded_text(name_text(value, setting), setting)


def queue_text(value: object, setting: str) -> str:
    """The name of a queue; commas, colons and spaces may be in it."""
    text = key_text(value, setting)
    if _CONTROL.search(text):
        raise ConfigError(f"{setting} is {text!r}; give a name without control characters")
    return text


def key_tuple(value: object, setting: str, read: Reader | None = None) -> tuple[str, ...]:
    """Some texts, each as short as a key, or as `read` wants it."""
    each, where = read or bounded_text, f"{setting}: one of them"
    return tuple([each(text, where) for text in text_tuple(value, setting)])


def bounded_text(value: object, setting: str) -> str:
    """A text that stores index, so it is short; it may be empty."""
    text = stored_text(value, setting)
    if len(text) > KEY_LENGTH_MAX:
        raise ConfigError(
            f"{setting} has {len(text)} characters, and {KEY_LENGTH_MAX} are allowed; give a "
            "shorter one, such as a digest of it"
        )
    return text


def weight(value: Any, setting: str) -> int:
    """How much of a rate limit one job uses up."""
    try:
        check_weight(value)
    except ConfigError as error:
        raise ConfigError(f"{setting.removesuffix('weight')}{error}") from None
    return int(value)


def unique_choice(value: object, setting: str) -> Unique:
    """A rule of uniqueness."""
    if not isinstance(value, Unique):
        raise ConfigError(f"{setting} is {value!r}; give a Unique(...)")
    return value
