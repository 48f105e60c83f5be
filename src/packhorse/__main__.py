# SPDX-License-Identifier: MIT
"""`python -m packhorse` is the `packhorse` command."""

from __future__ import annotations

from packhorse.cli.main import main

if __name__ == "__main__":
    main()
