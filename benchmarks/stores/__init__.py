# SPDX-License-Identifier: MIT
"""The stages: for each store who is measured on it, and what the figures are held against."""
