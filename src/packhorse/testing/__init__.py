# SPDX-License-Identifier: MIT
"""For tests: time that a test moves by hand, and the suite every store passes.

virtual_clock   time that stands still until it is told to move
conformance     the promises of a store as tests, for authors of stores; needs pytest and
                hypothesis, so it is imported only by name
"""
