# SPDX-License-Identifier: MIT
"""Does a worker grow? Very many jobs through one process, with all that goes wrong among them."""
