-- Does anything wait for attempts to end: jobs held back or stashed, workers or producers?
select
    exists (select 1 from {jobs} where lane = 6)
    or exists (select 1 from {stash})
    or exists (select 1 from {queues} where limited)
    or exists (select 1 from {special} where cardinality(tasks) > 0)
