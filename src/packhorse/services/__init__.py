# SPDX-License-Identifier: MIT
"""Loops beside the worker. Each is `run_once() -> seconds until next`; any number may run at once.

rescuer    jobs of workers that are gone go through `lifecycle.rescue`
promoter   due jobs become ready, also of queues nobody serves
expirer    waiting jobs past their deadline are given up
parker     jobs whose task no live worker knows are set aside, and given up after a time
pruner     what is over and past its lifetime is removed
"""
