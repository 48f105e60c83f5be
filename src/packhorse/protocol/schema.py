# SPDX-License-Identifier: MIT
"""The shapes as JSON Schema (draft 2020-12), for readers in other languages."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

import msgspec

from packhorse.protocol.queue_config import RateLimit
from packhorse.protocol.shape import Shape

__all__ = ["json_schema"]

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

# What a shape's `cross_check` refuses and its fields do not show, as far as JSON Schema can say it.
_CROSS_FIELD_RULES: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {RateLimit.__name__: {"anyOf": [{"required": ["duration"]}, {"required": ["durationMs"]}]}}
)


def json_schema(shape: type[Shape | Enum]) -> dict[str, Any]:
    """Return the JSON Schema of what `parse(shape, …)` accepts.

    Fields with a default are not `required`. Patterns are ECMA regular expressions as the draft
    asks, where `$` is the very end.
    """
    _, definitions = msgspec.json.schema_components(
        [shape], schema_hook=_function_schema, ref_template="#/$defs/{name}"
    )
    for name, rule in _CROSS_FIELD_RULES.items():
        if name in definitions:
            definitions[name].update(deepcopy(dict(rule)))
    root = definitions.pop(shape.__name__)
    nested = {"$defs": definitions} if definitions else {}
    return {"$schema": _DIALECT, **root, **nested}


def _function_schema(_: type) -> dict[str, Any]:
    return {"not": {}, "description": "A Python function; it cannot come from JSON."}
