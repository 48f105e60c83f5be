# SPDX-License-Identifier: MIT
"""One module for each thing that is measured; each writes its figures into the ledger."""
