# SPDX-License-Identifier: MIT
"""The store in a SQLite file."""
