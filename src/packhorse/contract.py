# SPDX-License-Identifier: MIT
"""A contract: what a task promises, written down so that callers and machines can go by it.

Every field is optional. What is left out is derived from the task: its name, its docstring, its
annotations and its options. In Python it is `Contract(...)`; in a file it is YAML or JSON:

    worker_id: queue-based-worker
    version: 1.0
    purpose: Consume queued tasks safely.
    inputs:
      - message: object
      - idempotency_key: string
    outputs:
      - status: string
      - outputs: object
    constraints:
      timeout_seconds: 60
      max_tokens: 1500
      tools_allowed: [language_model]
      rate_limit: per-tenant (example: 10/min)
    retries:
      max_attempts: 2
      backoff: exponential
    observability:
      trace_id: required
      log_fields: [worker_id, attempt, duration_ms]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

from packhorse.core.durations import Duration, positive_microseconds
from packhorse.core.job import NUMBER_MAX
from packhorse.core.schemas import input_schema, output_schema, short_form
from packhorse.errors import ConfigError

#: The input that is the job's idempotency key, where a contract names it.
KEY_INPUT: Final = "idempotency_key"
#: What becomes of a job whose result breaks its contract.
INVALID_OUTPUT_POLICIES: Final = ("retry", "dead", "store_as_failed")
_BACKOFFS: Final = ("fixed", "linear", "exponential")
_LOG_FIELDS: Final = ("worker_id", "attempt", "duration_ms")
_REQUIRED: Final = "required"
_SECOND_US: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What a task promises; whatever is None is derived from the task it is given to.

    `inputs` and `outputs` are names and types, a JSON Schema, or a Python type. Limits are
    ceilings: neither the task's own options nor a call may go beyond them.
    """

    worker_id: str | None = None
    version: str | None = None
    purpose: str | None = None
    inputs: Any = None
    outputs: Any = None
    timeout: Duration | None = None  #: of one attempt
    max_attempts: int | None = None  #: starts in total, lost and released ones too
    backoff: Literal["fixed", "linear", "exponential"] | None = None
    max_tokens: int | None = None
    tools_allowed: Iterable[str] | None = None  #: None allows every tool of the app
    rate_limit: str | tuple[int, Duration] | None = None  #: starts of each tenant: `10/min`
    idempotency_key: Literal["required"] | None = None  #: refuse jobs that come without one
    on_invalid_output: Literal["retry", "dead", "store_as_failed"] | None = None
    log_fields: Iterable[str] | None = None

    def __post_init__(self) -> None:
        for name in ("worker_id", "version", "purpose"):
            self._set(name, _text(getattr(self, name), name))
        if self.inputs is not None:
            self._set("inputs", input_schema(self.inputs, "contract: inputs"))
        if self.outputs is not None:
            self._set("outputs", output_schema(self.outputs, "contract: outputs"))
        if self.timeout is not None:
            positive_microseconds(self.timeout, setting="contract: timeout")
        for name in ("max_attempts", "max_tokens"):
            _check_number(getattr(self, name), name)
        for name in ("tools_allowed", "log_fields"):
            self._set(name, _texts(getattr(self, name), name))
        _check_choice(self.backoff, _BACKOFFS, "backoff")
        _check_choice(self.on_invalid_output, INVALID_OUTPUT_POLICIES, "on_invalid_output")
        _check_choice(self.idempotency_key, (_REQUIRED,), "idempotency_key")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def timeout_us(self) -> int | None:
        """The longest an attempt may take, in microseconds."""
        return None if self.timeout is None else positive_microseconds(self.timeout)

    def over(self, derived: Contract) -> Contract:
        """This contract where it says something, else what was derived."""
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(
            derived, **{name: value for name, value in said.items() if value is not None}
        )

    def document(self) -> dict[str, Any]:
        """The contract as plain data, in the shape of a file; what is not said is left out."""
        limits = {
            "timeout_seconds": _seconds(self.timeout_us),
            "max_tokens": self.max_tokens,
            "tools_allowed": None if self.tools_allowed is None else list(self.tools_allowed),
            "rate_limit": _rate_text(self.rate_limit),
        }
        inputs, outputs = self.inputs, self.outputs
        return _said(
            {
                "worker_id": self.worker_id,
                "version": self.version,
                "purpose": self.purpose,
                "inputs": None if inputs is None else short_form(inputs),
                "outputs": None if outputs is None else short_form(outputs, outputs=True),
                "constraints": _said(limits),
                "retries": _said({"max_attempts": self.max_attempts, "backoff": self.backoff}),
                "observability": {
                    "trace_id": _REQUIRED,
                    "log_fields": list(self.log_fields or _LOG_FIELDS),
                },
                "idempotency_key": self.idempotency_key,
                "on_invalid_output": self.on_invalid_output,
                "input_schema": inputs,
                "output_schema": outputs,
            }
        )

    @classmethod
    def parse(cls, document: Mapping[str, Any], where: str = "contract") -> Contract:
        """A contract from plain data in the shape of a file; what it does not know is an error."""
        top = _known(document, _TOP, where)
        limits = _known(top.get("constraints") or {}, _LIMITS, f"{where}: constraints")
        # The site that the shape is from writes them in either place.
        retries = top.get("retries") or limits.get("retries") or {}
        retries = _known(retries, _RETRIES, f"{where}: retries")
        signals = _known(top.get("observability") or {}, _SIGNALS, f"{where}: observability")
        _check_choice(signals.get("trace_id"), (_REQUIRED,), "observability.trace_id")
        try:
            return cls(
                worker_id=top.get("worker_id"),
                version=top.get("version"),
                purpose=top.get("purpose"),
                inputs=_first(top.get("input_schema"), top.get("inputs")),
                outputs=_first(top.get("output_schema"), top.get("outputs")),
                timeout=limits.get("timeout_seconds"),
                max_attempts=retries.get("max_attempts"),
                backoff=retries.get("backoff"),
                max_tokens=limits.get("max_tokens"),
                tools_allowed=limits.get("tools_allowed"),
                rate_limit=_first(limits.get("rate_limit"), top.get("rate_limit")),
                idempotency_key=top.get("idempotency_key"),
                on_invalid_output=top.get("on_invalid_output"),
                log_fields=signals.get("log_fields"),
            )
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None


_TOP: Final = (
    *("worker_id", "version", "purpose", "inputs", "outputs", "constraints", "retries"),
    *("observability", "idempotency_key", "on_invalid_output", "rate_limit"),
    *("input_schema", "output_schema"),
)
_LIMITS: Final = ("timeout_seconds", "max_tokens", "tools_allowed", "rate_limit", "retries")
_RETRIES: Final = ("max_attempts", "backoff")
_SIGNALS: Final = ("trace_id", "log_fields")


def _known(value: object, names: tuple[str, ...], where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} is of type {type(value).__name__}; give names and values")
    for name in value:
        if name not in names:
            raise ConfigError(f"{where}: there is no {name!r}; there are {', '.join(names)}")
    return value


def _first(*values: object) -> Any:
    return next((value for value in values if value is not None), None)


def _said(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, {})}


def _seconds(span_us: int | None) -> float | None:
    if span_us is None:
        return None
    return span_us // _SECOND_US if span_us % _SECOND_US == 0 else span_us / _SECOND_US


def _rate_text(rate: object) -> str | None:
    if isinstance(rate, tuple | list):
        return f"per-tenant: {rate[0]}/{rate[1]}"
    return None if rate is None else str(rate)


def _text(value: object, name: str) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and name == "version":
        value = str(value)
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise ConfigError(f"contract: {name} is {value!r}; give a text that is not empty")
    return value


def _texts(value: object, name: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise ConfigError(f"contract: {name} is {value!r}; give a list of names")
    names = tuple(value)
    if not all(isinstance(each, str) and each for each in names):
        raise ConfigError(f"contract: {name} is {value!r}; give a list of names")
    return names


def _check_number(value: object, name: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= NUMBER_MAX:
        raise ConfigError(f"contract: {name} is {value!r}; give a whole number from 1")


def _check_choice(value: object, choices: tuple[str, ...], name: str) -> None:
    if value is not None and value not in choices:
        raise ConfigError(f"contract: {name} is {value!r}; give one of {', '.join(choices)}")
