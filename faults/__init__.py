# SPDX-License-Identifier: MIT
"""Faults on purpose: real workers on real stores, disturbed by plan, and judged by a checker."""
