-- The queues and tasks with jobs under a gate: from one to the next.
with recursive kind (queue, task) as (
    (
        select queue, task from {jobs}
        where blocked_by = %(gate)s order by queue, task limit 1
    )
    union all
    select next.queue, next.task
    from kind
    cross join lateral (
        select job.queue, job.task from {jobs} as job
        where job.blocked_by = %(gate)s and (job.queue, job.task) > (kind.queue, kind.task)
        order by job.queue, job.task
        limit 1
    ) as next
)
select queue, task from kind
