# SPDX-License-Identifier: MIT
"""Hosts for runtimes of others, on the consumer; each needs that runtime installed."""
