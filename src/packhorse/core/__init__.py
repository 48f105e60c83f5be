# SPDX-License-Identifier: MIT
"""What a job is and the rules of its life: values and pure functions.

Everything may import from here; nothing here imports a store, a client or a worker. Only `clock`
reads the time or draws random numbers.
"""
