# SPDX-License-Identifier: MIT
"""What runs jobs: `worker` in a process, `supervisor` over several, `consumer` for users' loops.

`services` is the upkeep that workers do beside their jobs: promote, rescue, park, expire, prune.
Only `app` and the command line start it.
"""
