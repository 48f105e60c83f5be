-- Has some open queue a ready job of these tasks, held back or not, or one that is due?
select exists (
    select 1 from {jobs} as job
    where
        (job.lane in (0, 1, 6) or (job.lane = 3 and job.rank <= %(now)s))
        and job.queue = any(%(queues)s::text[])
        and (%(any_task)s or job.task = any(%(tasks)s::text[]))
        and (job.deadline_us is null or job.deadline_us > %(now)s)
)
