# SPDX-License-Identifier: MIT
"""JSON Schemas (draft 2020-12) of what goes into a task and comes out of it.

written    `[{"message": "object"}, {"note?": "string"}]`, a schema in full, or a Python type
derived    from a type, by msgspec
checked    by jsonschema-rs, of the extra `schema`, which is imported when the first one is made
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import GenericAlias, MappingProxyType, UnionType
from typing import Any, Final, NoReturn

import msgspec

from packhorse.core.json_values import is_foreign_model
from packhorse.errors import ConfigError

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]

#: Words of the short form, and the types they mean; `any` is no type at all.
_WORDS: Final = ("object", "string", "integer", "number", "boolean", "array", "null", "any")
#: What tells a schema in full from a mapping of names to words.
_KEYWORDS: Final = frozenset(
    {"$schema", "$ref", "$defs", "type", "properties", "required", "additionalProperties"}
    | {"anyOf", "oneOf", "allOf", "enum", "const", "title", "description"}
)
_HOW: Final = (
    "give names and types, such as [{'message': 'object'}, {'note?': 'string'}], a JSON Schema, or "
    "a Python type"
)


def input_schema(given: object, setting: str) -> Schema:
    """The schema of arguments; in the short form all are required, save `name?`, and no others."""
    pairs = _pairs(given, setting)
    schema = output_schema(given, setting)
    if pairs is None:
        return schema
    required = [name for name, _ in pairs if not name.endswith("?")]
    return {**schema, "additionalProperties": False, "required": required}


def output_schema(given: object, setting: str) -> Schema:
    """The schema of a result; in the short form none is required, and others are allowed."""
    pairs = _pairs(given, setting)
    if pairs is None:
        return _full(given, setting)
    return {
        "$schema": DIALECT,
        "type": "object",
        "additionalProperties": True,
        "properties": {name.removesuffix("?"): _typed(word, setting) for name, word in pairs},
    }


def _pairs(given: object, setting: str) -> list[tuple[str, str]] | None:
    """Names and words of the short form; None where it is a schema or a type."""
    if isinstance(given, Mapping) and not (given.keys() & _KEYWORDS):
        given = [{name: word} for name, word in given.items()]
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        return None
    entries = [one.items() if isinstance(one, Mapping) else () for one in given]
    pairs = [pair for entry in entries for pair in entry]
    if len(pairs) != len(given) or not all(
        isinstance(name, str) and name.strip("?") and isinstance(word, str) for name, word in pairs
    ):
        _refuse(given, setting)
    return pairs


def _typed(word: str, setting: str) -> Schema:
    words = [part.strip() for part in word.split("|")]
    for each in words:
        if each not in _WORDS:
            raise ConfigError(f"{setting}: {each!r} is no type; the types are {', '.join(_WORDS)}")
    if "any" in words:
        return {}
    return {"type": words[0] if len(words) == 1 else words}


def _full(given: object, setting: str) -> Schema:
    if isinstance(given, Mapping):
        return _plain_copy(given, setting)
    if isinstance(given, type | GenericAlias | UnionType) or hasattr(given, "__origin__"):
        return schema_of(given, setting)
    return _refuse(given, setting)


def _plain_copy(given: Mapping[str, Any], setting: str) -> Schema:
    """A copy of its own, of JSON values only."""
    try:
        copy: Schema = msgspec.json.decode(msgspec.json.encode(given))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{setting} is no JSON Schema: {error}") from error
    return copy


def _refuse(given: object, setting: str) -> NoReturn:
    raise ConfigError(f"{setting} is {given!r}; {_HOW}")


def schema_of(kind: Any, setting: str = "the type") -> Schema:
    """The schema that msgspec derives from a Python type."""
    try:
        (schema,), parts = msgspec.json.schema_components(
            [kind], schema_hook=_foreign_schema, ref_template="#/$defs/{name}"
        )
    except (TypeError, NotImplementedError) as error:
        raise ConfigError(f"{setting} has no JSON Schema: {error}") from error
    parts = dict(parts)
    reference = schema.pop("$ref", None)
    if reference is not None:  # its own part stands for it, unless it holds itself
        name = reference.rpartition("/")[2]
        schema = {**parts[name], **schema}
        if not _is_named(reference, [schema, *parts.values()]):
            del parts[name]
    found: Schema = {"$schema": DIALECT, **schema}
    hoisted = {**parts, **dict(_hoisted(found)), **dict(_hoisted(parts))}
    return {**found, "$defs": hoisted} if hoisted else found


def _foreign_schema(kind: type) -> Schema:
    """Let a model of another library tell its own; the library is never imported here."""
    if kind is object:
        return {"description": "any value"}  # msgspec takes an empty one for none
    if is_foreign_model(kind):
        told: Schema = kind.model_json_schema()  # type: ignore[attr-defined]  # as pydantic's are
        return told
    raise NotImplementedError(kind)


def _is_named(reference: str, where: object) -> bool:
    return reference.encode() in msgspec.json.encode(where)


def _hoisted(part: object) -> Iterable[tuple[str, Any]]:
    """Take definitions inside a schema out, since references are from its root."""
    if isinstance(part, dict):
        yield from part.pop("$defs", {}).items()
        for inner in list(part.values()):
            yield from _hoisted(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from _hoisted(inner)


def short_form(schema: Mapping[str, Any], *, outputs: bool = False) -> list[dict[str, str]]:
    """An object's properties with a word for each; empty where it is no object."""
    required = schema.get("required", ())
    return [
        {name if outputs or name in required else f"{name}?": _word(part)}
        for name, part in schema.get("properties", {}).items()
    ]


def _word(part: Any) -> str:
    if not isinstance(part, Mapping):
        return "any"
    choices = part.get("anyOf")
    if choices:
        return " | ".join(dict.fromkeys(_word(choice) for choice in choices))
    kind = part.get("type", "object" if "$ref" in part else "any")
    return kind if isinstance(kind, str) else " | ".join(kind)


class SchemaCheck:
    """A schema that was found to be one, and checks values; payloads are never shown."""

    def __init__(self, schema: Schema, setting: str) -> None:
        try:
            import jsonschema_rs  # noqa: PLC0415 - an extra, needed only for written schemas
        except ImportError as error:
            raise missing_extra("jsonschema-rs", setting) from error
        try:
            self._check = jsonschema_rs.Draft202012Validator(
                schema, mask="the value", retriever=_nothing_from_elsewhere
            )
        except ValueError as error:
            raise ConfigError(f"{setting} is no JSON Schema: {error}") from error

    def problem(self, value: Any) -> tuple[str, str] | None:
        """The place and the words of the first thing that is wrong with a value; None: nothing."""
        if self._check.is_valid(value):
            return None
        error = next(iter(self._check.iter_errors(value)))
        return _place(error.instance_path), str(error.message)


def _nothing_from_elsewhere(uri: str) -> NoReturn:
    raise ValueError(f"it refers to {uri}, and a contract holds all it needs")


def _place(path: Iterable[str | int]) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")


#: The packages of the extra, by what they are needed for.
_NEEDED_FOR: Final[Mapping[str, str]] = MappingProxyType(
    {"jsonschema-rs": "check a JSON Schema", "PyYAML": "read YAML"}
)


def missing_extra(package: str, setting: str) -> ConfigError:
    """The error that says which package is not installed, and how to have it."""
    return ConfigError(
        f"{setting}: to {_NEEDED_FOR[package]} takes {package}, which is not installed; "
        "run pip install 'packhorse[schema]'"
    )
