-- Queues that have a job due: from queue to queue, looking only at the first that waits in each.
with recursive waiting (queue) as (
    select min(queue) from packhorse_jobs where lane = 3
    union all
    select (
        select min(job.queue) from packhorse_jobs as job
        where job.lane = 3 and job.queue > waiting.queue
    )
    from waiting where waiting.queue is not null
)
select queue from waiting
where (
    select min(job.rank) from packhorse_jobs as job
    where job.lane = 3 and job.queue = waiting.queue
) <= ?
