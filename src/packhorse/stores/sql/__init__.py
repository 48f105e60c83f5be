# SPDX-License-Identifier: MIT
"""The steps of verbs that both SQL stores share.

Each store passes its own statements and helpers as a `Dialect`; steps ask for statements by name.
"""
