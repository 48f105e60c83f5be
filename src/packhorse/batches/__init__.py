# SPDX-License-Identifier: MIT
"""Batches for users: begin them from an iterator, inspect, cancel and retry them.

`core.batches` has their rules; workers run the chunks (`runtime.worker.chunks`) and fold their ends
(`runtime.services.batch_folding`).
"""
