# SPDX-License-Identifier: MIT
"""Batches, as users see them: begun from an iterator, looked at, cancelled, tried again.

What a batch is stands in `core.batches`; workers run its chunks (`runtime.worker.chunks`) and fold
their ends (`runtime.services.batch_folding`).
"""
