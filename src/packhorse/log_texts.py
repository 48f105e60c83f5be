# SPDX-License-Identifier: MIT
"""How events read in a log: as a sentence, as the fields of a record, as one JSON line.

A worker may log two lines for every job, so what depends on the kind of an event alone is worked
out once, and the rest is done in C.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from operator import attrgetter
from string import Formatter
from typing import Any, Final

import msgspec

from packhorse.events import Event

__all__ = ["event_fields", "json_text", "line_writer", "sentence_writer"]

#: Fields that are left out while they are empty.
_OPTIONAL: Final = frozenset(
    ("tenant", "span_id", "upstream_request_id", "error_code", "error_type", "error_message")
)
#: Fields that may be lists, which read otherwise in a sentence.
_LISTED: Final = frozenset(("queues", "tasks"))
_json: Final = msgspec.json.Encoder(enc_hook=str).encode


def json_text(value: object) -> str:
    """A value as JSON, whatever is in it."""
    return _json(value).decode()


def sentence_writer(kind: type[Event], sentence: str) -> Callable[[Event], str]:
    """What puts the fields of an event of this kind into its sentence."""
    if _LISTED.intersection(kind.__struct_fields__):
        return lambda event: sentence.format_map(_words(event))
    parts = list(Formatter().parse(sentence))
    names = [name for _, name, _, _ in parts if name]
    write = "".join(
        literal if name is None else f"{literal}{{:{spec}}}" for literal, name, spec, _ in parts
    ).format
    # Of two names or more: of one, its value would come alone. Who is not asked for is ignored.
    values = attrgetter(*names, names[0])
    return lambda event: write(*values(event))


def line_writer(
    kind: type[Event], *, level: str, logger: str
) -> Callable[[Event, datetime, str], bytes]:
    """What writes events of this kind, with a moment and a sentence, as JSON lines."""
    known = {field.name: field for field in msgspec.structs.fields(kind)}
    always = [name for name in known if name not in _OPTIONAL]
    filled = [name for name in known if name in _OPTIONAL]
    head = ("time", "level", "logger", "message", "event")
    # Empty is what these are by default, and a struct that leaves out defaults leaves them out.
    line: Callable[..., msgspec.Struct] = msgspec.defstruct(
        kind.__name__,
        [
            *((name, Any) for name in head),
            *((_label(name), Any) for name in always),
            *((name, Any, known[name].default) for name in filled),
        ],
        omit_defaults=True,
        gc=False,  # it lives for a moment, and holds nothing that could hold it
    )
    values, name = attrgetter(*always, *filled), kind.name

    def write(event: Event, moment: datetime, message: str) -> bytes:
        return _json(line(moment, level, logger, message, name, *values(event)))

    return write


def event_fields(event: Event) -> dict[str, Any]:
    """The fields of an event as a log record carries them."""
    fields = msgspec.structs.asdict(event)
    kept = {_label(name): fields[name] for name in fields if fields[name] or name not in _OPTIONAL}
    return {"event": event.name, **kept}


def _label(name: str) -> str:
    return "at_event" if name == "event" else name  # an event about an event


def _words(event: Event) -> dict[str, Any]:
    """The fields as they read in a sentence."""
    return {
        name: ", ".join(value) if isinstance(value, tuple) else value
        for name, value in msgspec.structs.asdict(event).items()
    }
