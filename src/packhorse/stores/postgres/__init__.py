# SPDX-License-Identifier: MIT
"""The PostgreSQL store: one schema of a database, any number of machines."""
