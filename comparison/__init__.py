# SPDX-License-Identifier: MIT
"""What becomes of jobs whose worker is killed or paused: Packhorse and its peers, one schedule.

run          `python -m comparison.run`: runs all systems, writes results/ and the table of the page
plan         the jobs and the faults, drawn from a seed
catalogue    who takes part, how each is started, how each is set and why
apps/        the same job for each, as its own documentation says; runs in its own environment
place        what an app is told by its environment
record       how a job writes down that it started and ended
submit       the program that submits the jobs of one of them
workers      real worker processes: started, killed, paused
trial        one of them through the whole schedule
result       what a run is told and what comes out of it
stores       a store of its own for each
judge        the counts, from nothing but the record
report       the table of docs/comparison.md, from results/
"""
