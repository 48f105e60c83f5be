# SPDX-License-Identifier: MIT
"""How an encrypted value looks where a plain one is expected, and what to do with one.

A sealed value is the JSON text `{"$enc":"KEY:DATA"}`; KEY is the id of its key, DATA is base64 for
URLs, which no JSON writer escapes. `client.sealed_store` has the keys and opens it.
What could not be opened stays sealed, and is met here.
"""

from __future__ import annotations

import re
from typing import Final, TypeVar

from packhorse.errors import KeyUnavailable

Text = TypeVar("Text", str, bytes)

#: A key's id.
KEY_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
#: Behind the id of a key: the value may move to another job of its task and tenant.
LOOSE: Final = "~"
#: A sealed value without its frame: how it stands in a document, whatever is around it.
_TOKEN: Final = re.compile(r"(?P<key>[A-Za-z0-9._-]{1,64})(?P<loose>~?):(?P<data>[A-Za-z0-9_=-]+)")

#: How every sealed value begins.
SEALED: Final = '{"$enc":"'
_END: Final = '"}'
_BEGINNINGS: Final = frozenset({SEALED, SEALED.encode()})  # of text of either kind


def sealed(token: str) -> str:
    """A token as the JSON text that is stored."""
    return f"{SEALED}{token}{_END}"


def is_sealed(text: str | bytes) -> bool:
    """Whether it is a sealed value."""
    return key_of(text) is not None


def key_of(text: str | bytes) -> str | None:
    """The id of the key that a value is sealed with; None: it is plain."""
    found = token_of(text)
    return None if found is None else found["key"]


def token_of(text: str | bytes) -> re.Match[str] | None:
    """The parts of a sealed value; None: it is plain."""
    if isinstance(text, bytes):
        if not text.startswith(b'{"$enc":"'):
            return None
        text = text.decode(errors="replace")
    if not text.startswith(SEALED) or not text.endswith(_END):
        return None
    return _TOKEN.fullmatch(text, len(SEALED), len(text) - len(_END))


def require_open(text: Text, job_id: str, what: str) -> Text:
    """The text, if it is plain; else `KeyUnavailable` says which key it needs."""
    if text[: len(SEALED)] in _BEGINNINGS and (found := token_of(text)) is not None:
        raise KeyUnavailable(job_id, key=found["key"], what=what)
    return text
