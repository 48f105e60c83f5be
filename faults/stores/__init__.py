# SPDX-License-Identifier: MIT
"""The stores under test, each with what can be done to it."""
