# SPDX-License-Identifier: MIT
"""The small parent of worker processes, and what it shares with them.

    parent ──signals, commands──▶ child: a worker, with user code
       ▲                            │
       ├──── messages (pipe) ───────┤   who it is, what it has done, that it wants to be replaced
       └──── shared memory ─────────┘   what runs now, when its loop last turned, its lease

The parent imports no user code, so no handler can crash or block it. It keeps a child's lease while
the child cannot, kills a child that is stuck, recovers the jobs of one that died, replaces it, and
answers probes.
"""
