# SPDX-License-Identifier: MIT
"""What changes between two contracts, and whether callers and waiting jobs can live with it.

Callers send inputs and read outputs, so new inputs must take all that old ones took, and new
outputs may be nothing that old ones were not. Waiting jobs hold old inputs. What the schemas do not
tell counts as unsafe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from packhorse.contract import KEY_INPUT, Contract
from packhorse.core.versions import PayloadVersions

#: Bounds of which a larger one takes more, and those of which a smaller one does.
_AT_MOST: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_AT_LEAST: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
#: What says nothing about which values are valid.
_NOTES: Final = frozenset(
    {"$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated"}
)
_COMPARED: Final = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf"}
    | {"$ref", "$defs", *_AT_MOST, *_AT_LEAST}
)
#: References are followed so deep; a type that holds itself has no end.
_DEPTH_MAX: Final = 20

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ContractChange:
    """One difference, and who can live with it."""

    place: str  #: `inputs.message`, `outputs.total`, `max_attempts`
    text: str
    callers: bool = True  #: those who submit and read as before need not change
    jobs: bool = True  #: those that wait run as before


def changes(
    old: Contract, new: Contract, versions: PayloadVersions | None = None
) -> list[ContractChange]:
    """Every difference, inputs first; `versions` are those of the new task's payloads.

    Inputs that old jobs do not fit are safe for them where upcasters lead on from their version.
    """
    moved = versions is not None and versions.leads_from(old.version)
    found = [*_inputs(old, new, moved=moved), *_outputs(old, new), *_limits(old, new)]
    safe = all(change.jobs for change in found)
    return [*found, *_version(old, new, moved=moved, safe=safe), *_words(old, new)]


def _inputs(old: Contract, new: Contract, *, moved: bool) -> Iterator[ContractChange]:
    before, after = old.inputs or {}, new.inputs or {}
    problems = list(_narrower(before, after, "inputs", (before, after)))
    for place, text in problems:
        yield ContractChange(place, text, callers=False, jobs=moved)
    if not problems and before != after:
        yield ContractChange("inputs", "takes all that it took before")
    if new.idempotency_key and not old.idempotency_key:
        text = "an idempotency key is required now"
        yield ContractChange(KEY_INPUT, text, callers=False, jobs=False)


def _outputs(old: Contract, new: Contract) -> Iterator[ContractChange]:
    before, after = old.outputs or {}, new.outputs or {}
    problems = list(_narrower(after, before, "outputs", (after, before)))
    for place, text in problems:
        yield ContractChange(
            place, f"readers may meet what they did not before: {text}", callers=False
        )
    if not problems and before != after:
        yield ContractChange("outputs", "is nothing that readers did not know")


def _limits(old: Contract, new: Contract) -> Iterator[ContractChange]:
    pairs = (
        ("timeout", old.timeout_us, new.timeout_us),
        ("max_attempts", old.max_attempts, new.max_attempts),
        ("max_tokens", old.max_tokens, new.max_tokens),
    )
    for place, before, after in pairs:
        if before != after:
            tighter = after is not None and (before is None or after < before)
            text = "is tighter" if tighter else "is wider"
            yield ContractChange(place, text, callers=not tighter, jobs=not tighter)
    if old.tools_allowed != new.tools_allowed:
        yield ContractChange("tools_allowed", "is what the new code may use")
    if str(old.rate_limit) != str(new.rate_limit):
        yield ContractChange("rate_limit", f"was {old.rate_limit}, is {new.rate_limit}")


def _version(old: Contract, new: Contract, *, moved: bool, safe: bool) -> Iterator[ContractChange]:
    """What becomes of jobs that wait, by their version."""
    if old.version == new.version:
        if not safe:
            text = "is the same, so that waiting jobs that do not fit are dead: invalid_request"
            yield ContractChange("version", text, jobs=False)
        return
    text = f"was {old.version}, is {new.version}"
    if moved:
        text += ", and upcasters move waiting jobs forward"
    elif not safe:
        text += ", and no upcaster is known: waiting jobs that do not fit are parked"
    yield ContractChange("version", text, jobs=moved or safe)


def _words(old: Contract, new: Contract) -> Iterator[ContractChange]:
    if old.worker_id != new.worker_id:
        text = f"was {old.worker_id!r}, is {new.worker_id!r}: requests go by it"
        yield ContractChange("worker_id", text, callers=False)
    for name in ("purpose", "backoff", "on_invalid_output"):
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            yield ContractChange(name, f"was {before}, is {after}")


def _narrower(
    old: Schema, new: Schema, place: str, roots: tuple[Schema, Schema], depth: int = 0
) -> Iterator[tuple[str, str]]:
    """Where `new` may refuse a value that `old` takes."""
    old, new = _followed(old, roots[0]), _followed(new, roots[1])
    if _plain(old) == _plain(new) and (depth or roots[0].get("$defs") == roots[1].get("$defs")):
        return
    if depth > _DEPTH_MAX:
        yield place, "is nested too deeply to be compared"
        return
    unknown = {word for word in old.keys() | new.keys() if old.get(word) != new.get(word)}
    for word in sorted(unknown - _COMPARED - _NOTES):
        yield place, f"{word} is another, and what that means cannot be told"
    if "anyOf" in new or "anyOf" in old:
        yield from _choices(old, new, place, roots, depth)
        return
    yield from _types(old, new, place)
    yield from _bounds(old, new, place)
    yield from _members(old, new, place, roots, depth)


def _choices(
    old: Schema, new: Schema, place: str, roots: tuple[Schema, Schema], depth: int
) -> Iterator[tuple[str, str]]:
    after = new.get("anyOf", [new])
    for choice in old.get("anyOf", [old]):
        if all(any(_narrower(choice, one, place, roots, depth + 1)) for one in after):
            yield place, f"{_kinds_text(choice)} is not taken as it was"


def _types(old: Schema, new: Schema, place: str) -> Iterator[tuple[str, str]]:
    before, after = _kinds(old), _kinds(new)
    if after is not None:
        lost = ["any"] if before is None else [kind for kind in before if not _takes(after, kind)]
        if lost:
            yield place, f"was {_kinds_text(old)}, is {_kinds_text(new)}"
    for word in ("enum", "const"):
        allowed = [new["const"]] if "const" in new else new.get("enum")
        known = [old["const"]] if "const" in old else old.get("enum")
        if word in new and (known is None or any(value not in (allowed or ()) for value in known)):
            yield place, "takes fewer values"


def _bounds(old: Schema, new: Schema, place: str) -> Iterator[tuple[str, str]]:
    for word in (*_AT_MOST, *_AT_LEAST):
        before, after = old.get(word), new.get(word)
        if after is None or before == after:
            continue
        if before is None or (after < before if word in _AT_MOST else after > before):
            yield place, f"{word} is {after}, was {'none' if before is None else before}"


def _members(
    old: Schema, new: Schema, place: str, roots: tuple[Schema, Schema], depth: int
) -> Iterator[tuple[str, str]]:
    before, after = old.get("properties", {}), new.get("properties", {})
    required = set(old.get("required", ()))
    for name in new.get("required", ()):
        if name not in required:
            yield f"{place}.{name}", "is required now"
    for name, part in before.items():
        if name in after:
            yield from _narrower(part, after[name], f"{place}.{name}", roots, depth + 1)
        elif new.get("additionalProperties", True) is False:
            yield f"{place}.{name}", "is not taken any more"
    if old.get("additionalProperties", True) is not False:
        yield from _others(old, new, place, roots, depth)
    if "items" in new:
        yield from _narrower(old.get("items", {}), new["items"], f"{place}[]", roots, depth + 1)


def _others(
    old: Schema, new: Schema, place: str, roots: tuple[Schema, Schema], depth: int
) -> Iterator[tuple[str, str]]:
    """Names that `old` took without listing them."""
    before, after = old.get("additionalProperties", True), new.get("additionalProperties", True)
    rest = before if isinstance(before, Mapping) else {}
    for name, part in new.get("properties", {}).items():
        if name not in old.get("properties", {}):
            yield from _narrower(rest, part, f"{place}.{name}", roots, depth + 1)
    if after is False and _kinds(old) in (None, ("object",)):
        yield place, "takes no other names any more"
    elif isinstance(after, Mapping):
        yield from _narrower(rest, after, f"{place}.*", roots, depth + 1)


def _followed(schema: Any, root: Schema) -> Schema:
    """The schema that a reference means; `true` is any, `false` none."""
    for _ in range(_DEPTH_MAX):
        if not isinstance(schema, Mapping):
            return {} if schema else {"enum": []}
        reference = schema.get("$ref")
        if reference is None:
            return schema
        name = str(reference).removeprefix("#/$defs/")
        schema = root.get("$defs", {}).get(name, {"enum": []})
    return {}


def _plain(schema: Schema) -> dict[str, Any]:
    return {word: value for word, value in schema.items() if word not in _NOTES}


def _kinds(schema: Schema) -> tuple[str, ...] | None:
    kind = schema.get("type")
    return kind if kind is None else (kind,) if isinstance(kind, str) else tuple(kind)


def _takes(kinds: tuple[str, ...], kind: str) -> bool:
    return kind in kinds or (kind == "integer" and "number" in kinds)


def _kinds_text(schema: Schema) -> str:
    return " | ".join(_kinds(schema) or ("any",))
