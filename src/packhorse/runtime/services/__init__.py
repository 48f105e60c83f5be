# SPDX-License-Identifier: MIT
"""Loops beside jobs: each is `run_once() -> seconds until next`.

Any number of them may run at once on one store. `upkeep` has those that promote, expire, park,
prune and admit; the others have a module each, such as `rescuer`, `ticker` and `groups`.
"""
