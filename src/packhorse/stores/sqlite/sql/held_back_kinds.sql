-- The queues and tasks with jobs under a gate: from one to the next.
with recursive kind (queue, task) as (
    select * from (
        select queue, task from packhorse_jobs where blocked_by = :gate order by queue, task limit 1
    )
    union all
    select next.queue, next.task
    from kind, packhorse_jobs as next
    where next.seq = (
        select job.seq from packhorse_jobs as job
        where job.blocked_by = :gate and (job.queue, job.task) > (kind.queue, kind.task)
        order by job.queue, job.task
        limit 1
    )
)
select queue, task from kind
