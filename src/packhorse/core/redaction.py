# SPDX-License-Identifier: MIT
"""What may be shown of values and of exception text: secrets are masked, long values are cut.

An app may bring a hook of its own, `Packhorse(redact=...)`: given a JSON value or a text, it
returns what may be shown instead. Everything that logs, stores or prints such text asks it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from packhorse.core.job import AttemptError
from packhorse.core.sealing import key_of

#: Given a value or a text, returns what may be shown of it.
Redact = Callable[[Any], Any]

REDACTED: Final = "[redacted]"
_FAILED: Final = "[not shown: the redact hook failed]"
#: Characters of one value that are shown, and values inside values.
_LENGTH_MAX: Final = 500
_DEPTH_MAX: Final = 50

_NAMES: Final = (
    r"(?:pass(?:word|wd|phrase|code)|pwd|secrets?|tokens?|api[-_ ]?keys?|access[-_ ]?keys?"
    r"|private[-_ ]?keys?|secret[-_ ]?keys?|client[-_ ]?secret|authorization|credentials?"
    r"|cookies?|set-cookie|session[-_ ]?(?:id|key)|otp|pin|cvv|cvc|ssn|iban"
    r"|card[-_ ]?(?:number|no)|cardnumber|account[-_ ]?number)"
)
#: A name that says its value is a secret, alone or behind another word: `db_password`, `apiKey`.
_SECRET_NAME: Final = re.compile(rf"(?:.*[-_. ])?{_NAMES}", re.IGNORECASE)
_INNER_CAPITAL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
#: Signs of a value that no quotes surround; a part of it may have been masked already.
_UNQUOTED: Final = rf"(?:{re.escape(REDACTED)}|[^\s,;\"')}}\]])+"
#: The same in a text: `password=x`, `"token": "x"`, `Authorization: Bearer x`.
_ASSIGNED: Final = re.compile(
    r"(?P<name>(?<![A-Za-z])(?:\w*[-_.]|[a-z0-9]+(?=[A-Z]))?"
    rf"(?i:{_NAMES})[\"']?\s*(?:=>|[=:])\s*)(?!\[redacted\])"
    rf"(?P<value>(?i:bearer|basic|digest)\s+{_UNQUOTED}"
    rf"|\"[^\"\n]*\"|'[^'\n]*'|{_UNQUOTED})"
)
#: What such names are made of: most texts have none of it, which is seen at once.
_STEMS: Final = (
    *("pass", "pwd", "secret", "token", "key", "authorization", "credential", "cookie", "session"),
    *("otp", "pin", "cvv", "cvc", "ssn", "iban", "card", "account"),
)
#: Words of which a text has one, the pattern to look for then, and what stands instead of it.
_PATTERNS: Final = (
    (("://",), re.compile(r"(://[^\s/:@]*:)[^\s/@]+(?=@)"), rf"\g<1>{REDACTED}"),
    (
        ("bearer", "basic"),
        re.compile(r"(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}"),
        rf"\g<1>{REDACTED}",
    ),
    (("eyj",), re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*"), REDACTED),
    (
        ("private key",),
        re.compile(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
            re.DOTALL,
        ),
        REDACTED,
    ),
)
#: Cards begin with these digits; instants and most ids do not.
_CARD: Final = re.compile(r"(?<![\w.-])[2-6](?:[ -]?\d){12,18}(?![\w-])")


def redacted(hook: Redact, value: Any) -> Any:
    """A value as it may be shown; a hook that fails shows nothing."""
    try:
        return hook(value)
    except Exception:  # noqa: BLE001 - it is user code, and a value it cannot judge stays hidden
        return _FAILED


def redacted_text(hook: Redact, text: str) -> str:
    """A text as it may be shown."""
    shown = redacted(hook, text)
    return shown if isinstance(shown, str) else str(shown)


def redacted_error(hook: Redact, error: AttemptError) -> AttemptError:
    """An error as it may be stored, logged and shown."""
    stack = None if error.stack is None else redacted_text(hook, error.stack)
    message = redacted_text(hook, error.message)
    if (message, stack) == (error.message, error.stack):
        return error
    return msgspec.structs.replace(error, message=message, stack=stack)


def redact_default(value: Any) -> Any:
    """Mask what a name or its look says is a secret; inside of values, cut what is long."""
    return _text(value) if isinstance(value, str) else _value(value, 0)


def _value(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        shown = _text(value)
        left = len(shown) - _LENGTH_MAX
        return f"{shown[:_LENGTH_MAX]}… {left} characters more" if left > 0 else shown
    if depth >= _DEPTH_MAX:
        return "…" if isinstance(value, dict | list | tuple) else value
    if isinstance(value, dict):
        return {
            name: REDACTED if _is_secret(name) else _value(part, depth + 1)
            for name, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [_value(part, depth + 1) for part in value]
    if isinstance(value, int) and not isinstance(value, bool) and _CARD.fullmatch(str(value)):
        return REDACTED if _is_card(str(value)) else value
    return value


def _is_secret(name: object) -> bool:
    if not isinstance(name, str):
        return False
    return _SECRET_NAME.fullmatch(_INNER_CAPITAL.sub("_", name)) is not None


def _text(text: str) -> str:
    if (key := key_of(text)) is not None:
        return f"[encrypted with key {key!r}, which is not here]"
    # Patterns take both Turkish letters for an i.
    folded = text.casefold().replace("i\u0307", "i").replace("\u0131", "i")
    for words, pattern, instead in _PATTERNS:
        if any(word in folded for word in words):
            text = pattern.sub(instead, text)
    if any(stem in folded for stem in _STEMS):
        text = _ASSIGNED.sub(_without_value, text)
    return _CARD.sub(lambda found: REDACTED if _is_card(found[0]) else found[0], text)


def _without_value(found: re.Match[str]) -> str:
    quote = found["value"][0] if found["value"][0] in "\"'" else ""
    return f"{found['name']}{quote}{REDACTED}{quote}"


def _is_card(text: str) -> bool:
    """Whether the digits are those of a card: their check digit is right."""
    digits = [int(sign) for sign in reversed(text) if sign.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0
