-- Queues with ready jobs that may wait for one of these tasks, if one of them has limits.
select queue from {special} as known cross join lateral unnest(known.tasked) as tasked (queue)
where
    known.tasks && %s::text[]
    and exists (select 1 from {jobs} as job where job.lane = 0 and job.queue = tasked.queue)
