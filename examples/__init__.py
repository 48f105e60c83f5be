# SPDX-License-Identifier: MIT
"""Whole programs, each with a README, run by the tests."""
