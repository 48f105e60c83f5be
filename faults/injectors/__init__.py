# SPDX-License-Identifier: MIT
"""What can go wrong, one kind of fault each; chance comes from the plan's seed alone."""
