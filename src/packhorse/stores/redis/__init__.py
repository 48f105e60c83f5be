# SPDX-License-Identifier: MIT
"""The Redis store: one server or one shard of a cluster, one script per verb."""
