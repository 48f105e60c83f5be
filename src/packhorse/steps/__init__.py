# SPDX-License-Identifier: MIT
"""Run the steps of an attempt: `ctx.step`, `ctx.each`, `ctx.sleep` and `ctx.wait_for`.

`core.steps` has the rules; the code here applies them, in a thread or on an event loop.
"""

from __future__ import annotations

from packhorse.steps.calls import IN_THREAD, ON_LOOP, finished
from packhorse.steps.runner import StepRunner
from packhorse.steps.verbs import StepVerbs

__all__ = ["IN_THREAD", "ON_LOOP", "StepRunner", "StepVerbs", "finished"]
