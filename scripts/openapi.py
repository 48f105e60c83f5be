# SPDX-License-Identifier: MIT
"""Write the OpenAPI document that is checked in, from the table of routes."""

from __future__ import annotations

from pathlib import Path

import msgspec

from packhorse.web.openapi import openapi_document

FILE = Path(__file__).resolve().parent.parent / "docs/reference/openapi.json"


def openapi_text() -> str:
    """The whole of the file."""
    text = msgspec.json.format(msgspec.json.encode(openapi_document()), indent=1)
    return f"{text.decode()}\n"


if __name__ == "__main__":
    FILE.write_text(openapi_text(), encoding="utf-8")
    print(f"wrote {FILE}")
