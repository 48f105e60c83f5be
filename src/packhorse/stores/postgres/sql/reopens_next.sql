-- When time next opens a gate that holds back a job of these queues and tasks.
select min(at_us) from {reopens} as reopening
where exists (
    select 1 from {jobs} as job
    where
        job.blocked_by = reopening.gate
        and job.queue = any(%(queues)s::text[])
        and (%(any_task)s or job.task = any(%(tasks)s::text[]))
)
