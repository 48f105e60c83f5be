# SPDX-License-Identifier: MIT
"""Contracts in files, YAML or JSON: read with a loader that makes plain values only, and written.

What is written is YAML that needs no library: scalars as JSON has them, which YAML reads the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from packhorse.contract import Contract
from packhorse.core.schemas import missing_extra
from packhorse.errors import ConfigError

if TYPE_CHECKING:
    import yaml

#: A larger file is no contract.
_FILE_BYTES_MAX: Final = 1024 * 1024
#: Texts that YAML reads as the same text without quotes.
_BARE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./ -]*[A-Za-z0-9_.]|[A-Za-z]")
_WORDS: Final = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def read_contract(path: Path) -> Contract:
    """The contract in a file, or a `ConfigError` that names the file."""
    return Contract.parse(read_document(path), f"contract {path}")


def read_document(path: Path) -> Mapping[str, Any]:
    """The plain data in a file, YAML or, by its ending, JSON."""
    where = f"contract {path}"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror or error}") from error
    if len(data) > _FILE_BYTES_MAX:
        raise ConfigError(f"{where} has {len(data)} bytes, and {_FILE_BYTES_MAX} are allowed")
    document = _from_json(data, where) if path.suffix == ".json" else _from_yaml(data, where)
    if not isinstance(document, Mapping):
        raise ConfigError(f"{where} holds no names and values")
    return document


def _from_json(data: bytes, where: str) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ConfigError(f"{where} is no JSON: {error}") from error


def _from_yaml(data: bytes, where: str) -> Any:
    try:
        import yaml  # noqa: PLC0415 - an extra, needed only for files
    except ImportError as error:
        raise missing_extra("PyYAML", where) from error
    loader = yaml.SafeLoader(data)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        repeated = next(_repeated_names(node, yaml.MappingNode), None)
        if repeated is not None:
            raise ConfigError(f"{where} says {repeated!r} twice")
        document = loader.construct_document(node)
        if isinstance(document, dict) and "version" in document:
            document["version"] = _as_written(node, "version")  # 1.10 is no number
        return document
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{where} is no YAML: {error}") from error
    finally:
        loader.dispose()


def _repeated_names(node: yaml.Node, mapping: type[Any]) -> Iterator[str]:
    """Names that one mapping has twice, of which YAML would silently keep the last."""
    if isinstance(node.value, list):
        parts = [
            part for pair in node.value for part in (pair if isinstance(pair, tuple) else [pair])
        ]
        if isinstance(node, mapping):
            names = [str(key.value) for key, _ in node.value]
            yield from (name for name in names if names.count(name) > 1)
        for part in parts:
            yield from _repeated_names(part, mapping)


def _as_written(node: yaml.Node, name: str) -> str:
    return next(str(value.value) for key, value in node.value if key.value == name)


def as_yaml(value: Any) -> str:
    """Plain data as YAML, in blocks; ends with a new line."""
    return "".join(f"{line}\n" for line in _lines(value, ""))


def _lines(value: Any, margin: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _entry(f"{margin}{_scalar(name)}:", part, margin + "  ")
    else:
        for part in value:
            block = list(_lines(part, margin + "  ")) if _is_block(part) else [_scalar(part)]
            yield f"{margin}- {block[0].lstrip()}"
            yield from block[1:]


def _entry(head: str, part: Any, margin: str) -> Iterator[str]:
    if _is_block(part):
        yield head
        yield from _lines(part, margin)
    else:
        yield f"{head} {_scalar(part)}"


def _is_block(value: Any) -> bool:
    """Whether it takes lines of its own: anything but a scalar, a list of them, or nothing."""
    if isinstance(value, Mapping):
        return bool(value)
    return isinstance(value, list) and any(isinstance(part, list | Mapping) for part in value)


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _BARE.fullmatch(value) and value.lower() not in _WORDS:
        return value
    if isinstance(value, list):
        return f"[{', '.join(_scalar(part) for part in value)}]"
    return msgspec.json.encode(value).decode()
