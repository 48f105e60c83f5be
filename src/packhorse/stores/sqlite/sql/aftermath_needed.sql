-- Does anything wait for attempts to end: jobs held back or stashed, workers or producers? And are
-- jobs held back by other gates than lines of order, whose texts all begin alike?
select
    exists (select 1 from packhorse_jobs where lane = 6)
    or exists (select 1 from packhorse_stash)
    or exists (select 1 from packhorse_queues where limited = 1),
    exists (select 1 from packhorse_jobs where blocked_by < 'order' || char(31))
    or exists (select 1 from packhorse_jobs where blocked_by > 'order' || char(32))
