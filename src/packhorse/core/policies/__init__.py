# SPDX-License-Identifier: MIT
"""Pure rules: no I/O, no clock, no dice. The oracle for what stores do in SQL and Lua."""
