# SPDX-License-Identifier: MIT
"""The small parent of worker processes, and what it shares with them.

    parent ──signals, commands──▶ child: a worker, with user code
       ▲                            │
       ├──── messages (pipe) ───────┤   who it is, what it has done, that it wants to be replaced
       └──── page (shared memory) ──┘   what runs now, when its loop last turned, its lease

The parent imports no user code, so nothing that happens in a handler can take it down or block it.
It keeps a child's lease while the child cannot, kills a child that is stuck beyond its jobs' time,
settles the jobs of one that died, starts another in its place, and answers probes.
"""
