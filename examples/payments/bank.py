# SPDX-License-Identifier: MIT
"""A bank: down at times, and it heeds idempotency keys. Its books are a file."""

from __future__ import annotations

from pathlib import Path

_BOOKS = Path("bank-books.txt")
_CALLS = Path("bank-calls.txt")
_DOWN = Path("bank-is-down")


def set_down(*, down: bool) -> None:
    if down:
        _DOWN.touch()
    else:
        _DOWN.unlink(missing_ok=True)


def charge(card: str, cents: int, key: str) -> str:
    """Take money; the same key again is the same charge."""
    with _CALLS.open("a") as file:
        file.write(f"{card}\n")
    if _DOWN.exists():
        raise ConnectionError("the bank does not answer")
    if all(line.split()[0] != key for line in charges()):
        with _BOOKS.open("a") as file:
            file.write(f"{key} {card} {cents}\n")
    return f"receipt-{card}"


def charges() -> list[str]:
    return _BOOKS.read_text().splitlines() if _BOOKS.exists() else []


def calls() -> int:
    return len(_CALLS.read_text().splitlines()) if _CALLS.exists() else 0
