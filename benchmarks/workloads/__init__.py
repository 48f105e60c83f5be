# SPDX-License-Identifier: MIT
"""The same jobs for each contestant: the programs that submit them and those that run them."""
