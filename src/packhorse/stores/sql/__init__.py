# SPDX-License-Identifier: MIT
"""What the SQL stores share: every decision that is the same, whatever the words of its statements.

A store gives in its words as a `Dialect`; the steps here ask for statements by name.
"""
