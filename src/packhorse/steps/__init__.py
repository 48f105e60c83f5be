# SPDX-License-Identifier: MIT
"""The steps of an attempt: `ctx.step`, `ctx.each`, `ctx.sleep` and `ctx.wait_for`.

The rules are in `core.steps`; here they are run, in a thread or on an event loop.
"""

from __future__ import annotations

from packhorse.steps.calls import IN_THREAD, ON_LOOP, finished
from packhorse.steps.flow import FlowVerbs
from packhorse.steps.runner import StepRunner
from packhorse.steps.verbs import StepVerbs

__all__ = ["IN_THREAD", "ON_LOOP", "FlowVerbs", "StepRunner", "StepVerbs", "finished"]
