# SPDX-License-Identifier: MIT
"""The same job for every system: it sleeps, and records that it began and ended.

Each module has the task, `submitting` for the program that submits, `held` to count the jobs that
its store would still run, and `prepare` where the store needs tables first.
"""
