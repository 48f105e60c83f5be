# SPDX-License-Identifier: MIT
"""The producer's side: from a call to a stored job, from an app's options to settings.

The public face (`app`, `task`, `handle`) stands on it, the runtime reads its registry; it knows
stores by their protocol only.
"""
