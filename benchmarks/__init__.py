# SPDX-License-Identifier: MIT
"""How fast Packhorse is: beside its peers and beside the bare loop, as ratios inside one run.

run         `python -m benchmarks.run`: measures, judges the bounds, writes results/
profile     `python -m benchmarks.profile`: where a worker's time goes, job by job
settings    how much of everything one run does
stage       what differs from store to store; stores/ has one for each
peers/      the peers on PostgreSQL and Redis, each in an environment of its own
measures/   one module for each thing that is measured
workloads/  the same no-op job for Packhorse, the bare loop and the peer on SQLite
probe       how jobs are counted and timed in the worker process, alike for all
estimates   medians, bootstrap intervals, paired ratios
bounds      what the figures are held against
report      the page, the chart and the data that a run leaves behind
"""
