-- Queues that have a job due: from queue to queue, looking only at the first that waits in each.
with recursive waiting (queue) as (
    (select queue from {jobs} where lane = 3 order by queue limit 1)
    union all
    select next.queue
    from waiting
    cross join lateral (
        select job.queue from {jobs} as job
        where job.lane = 3 and job.queue > waiting.queue
        order by job.queue
        limit 1
    ) as next
)
select queue from waiting
where (
    select min(job.rank) from {jobs} as job
    where job.lane = 3 and job.queue = waiting.queue
) <= %s
