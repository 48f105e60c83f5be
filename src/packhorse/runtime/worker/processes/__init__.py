# SPDX-License-Identifier: MIT
"""Handlers declared with `executor="process"`: each runs in a process that can be killed.

runner      claims such jobs and runs them, one event-loop task per attempt
pool        the processes, kept warm and replaced when they have done enough
child       what runs inside such a process
messages    what worker and process send to each other
"""
