# SPDX-License-Identifier: MIT
"""What other systems are told: each module is one of them, behind an extra of its own.

    from packhorse.telemetry import sentry
    sentry.install(app, each="death")

Nothing here is imported unless a program asks for it, and an app without it pays nothing.
"""

from __future__ import annotations
