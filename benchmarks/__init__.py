# SPDX-License-Identifier: MIT
"""How fast Packhorse is: beside a peer and beside the bare loop, as ratios inside one run.

run         `python -m benchmarks.run`: measures, judges the bounds, writes results/
profile     `python -m benchmarks.profile`: where a worker's time goes, job by job
settings    how much of everything one run does
measures/   one module for each thing that is measured
workloads/  the same no-op job for Packhorse, the peer and the bare loop
probe       how jobs are counted and timed in the worker process, alike for all
estimates   medians, bootstrap intervals, paired ratios
bounds      what the figures are held against
report      the page, the chart and the data that a run leaves behind
"""
