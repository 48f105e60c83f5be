# SPDX-License-Identifier: MIT
"""Workflows, as users see them: put together, started, looked at, cancelled, tried again.

What becomes of a node stands in `core.workflows` and `core.workflow_folding`; workers go on with
them (`runtime.services.workflow_folding`).
"""
