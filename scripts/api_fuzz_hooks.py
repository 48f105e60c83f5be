# SPDX-License-Identifier: MIT
"""What schemathesis is told of the API that no document says; it loads this module itself."""

from __future__ import annotations

import contextlib
import os
from itertools import count
from typing import Any, Final

import msgspec
import schemathesis

#: By the first word of a path: what is there.
_KNOWN: Final[dict[str, list[str]]] = msgspec.json.decode(os.environ["PACKHORSE_FUZZ_KNOWN"])
#: Longer than a request of the fuzzing is to wait for a job; up to what the API takes.
_WAIT_S: Final = (0.1, 60.0)
_REQUESTS: Final = count(1)
_KEY_MAX: Final = 190


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: Any) -> Any:
    """Name what is there half of the time: texts by chance name nothing."""
    kind = context.operation.path.removeprefix("/api/v1/").split("/")[0]
    known = _KNOWN.get(kind)
    if not known or not isinstance(path_parameters, dict):
        return path_parameters
    return {name: _named(value, known) for name, value in path_parameters.items()}


def _named(value: Any, known: list[str]) -> Any:
    drawn = sum(str(value).encode("utf-8", "replace"))
    return known[drawn // 2 % len(known)] if drawn % 2 == 0 else value


@schemathesis.hook
def before_call(_context: Any, case: Any, **_more: Any) -> None:
    """Come from another address each time, since wrong tokens of one address are bounded.

    And with a key of its own: one that is used for two requests is refused. Wait only briefly.
    """
    if case.operation.path.endswith("/wait"):
        query = dict(case.query or {})
        with contextlib.suppress(ValueError):  # what is no number is refused at once
            if _WAIT_S[0] < float(str(query.get("timeout", _WAIT_S[1]))) <= _WAIT_S[1]:
                case.query = {**query, "timeout": _WAIT_S[0]}
    number = next(_REQUESTS)
    headers = case.headers if case.headers is not None else {}
    if 0 < len(key := headers.get("Idempotency-Key", "")) < _KEY_MAX:
        headers["Idempotency-Key"] = f"{key}{number}"
    headers["X-Forwarded-For"] = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    case.headers = headers


@schemathesis.hook
def filter_failure(_context: Any, failure: Any, _case: Any, response: Any) -> bool:
    """Drop what is no failure.

    A rule of the domain may refuse what the document allows, such as a task that is not there; what
    `INVALID` says is a matter of types, and all of that is to be in the document. And since names
    may have slashes, a path with more in it than one route may be the name of another route's.
    """
    kind, status = type(failure).__name__, response.status_code
    if kind == "RejectedPositiveData" and status in (412, 422):
        told = response.json()
        whole = told["detail"].endswith("got `float`")  # 1.0, which is an integer in a schema
        return bool(told["code"] == "INVALID" and not whole)
    return kind != "UnsupportedMethodResponse" or status not in (404, 422)
