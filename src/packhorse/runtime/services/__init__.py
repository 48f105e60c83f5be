# SPDX-License-Identifier: MIT
"""Loops beside jobs: `upkeep` (promote, expire, park, prune, starvation) and `rescuer`.

Each is `run_once() -> seconds until next`, and any number of them may run at once on one store.
"""
