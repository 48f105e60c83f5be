# SPDX-License-Identifier: MIT
"""Real servers for tests, started from packages or named by the environment."""
