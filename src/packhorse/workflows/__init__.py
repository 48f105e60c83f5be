# SPDX-License-Identifier: MIT
"""Workflows for users: build, start, inspect, cancel and retry them.

`core.workflows` and `core.workflow_folding` have the rules of nodes; workers advance workflows
(`runtime.services.workflow_folding`).
"""
