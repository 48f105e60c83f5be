# SPDX-License-Identifier: MIT
"""Was everything as promised? Pure: evidence in, verdict out; each rule with planted violations."""
