-- Does anything wait for attempts to end: jobs held back or stashed, workers or producers?
select
    exists (select 1 from packhorse_jobs where lane = 6)
    or exists (select 1 from packhorse_stash)
    or exists (select 1 from packhorse_queues where limited = 1)
