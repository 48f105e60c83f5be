-- Parked jobs whose task some live worker of their queue knows again.
select job.seq, job.queue from {jobs} as job
where
    job.lane = 2
    and exists (
        select 1 from {workers} as worker
        where
            worker.expires_us > %(now)s and job.queue = any(worker.queues)
            and (job.task = any(worker.tasks) or '*' = any(worker.tasks))
    )
order by job.seq
limit %(limit)s
